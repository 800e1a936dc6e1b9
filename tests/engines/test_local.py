"""Worker processes on this machine, for real."""

import os
import signal
import subprocess
import sys
import time

import pytest

from genprior import engines
from genprior.engines import Batches, EngineError, Poisoned
from genprior.engines.local import _keep_last
from genprior.engines.worker import Head
from tests.engines.works import Squares


def run(work, count=4, workers=2, **options):
    batches = Batches(work, range(count), lambda number, whole: (number, whole))
    return engines.Local(workers, **options).run(batches)


def gone(pid):
    """Whether a process has ended."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_batches_are_solved_by_processes_of_one_thread_whatever_happens_to_them(tmp_path):
    """Batch 0 kills its worker, batch 1 hangs, each once."""
    found = dict(run(Squares(deadly_once=str(tmp_path), hanging_once=str(tmp_path), seconds=0.1), batch_seconds=3.0))
    assert {number: answer[0] for number, answer in found.items()} == {n: n**2 for n in range(4)}
    assert os.getpid() not in {answer[1] for answer in found.values()}
    assert {answer[2] for answer in found.values()} == {1}
    assert all(gone(answer[1]) for answer in found.values())


def test_closing_the_answers_early_ends_the_workers():
    answers = run(Squares(), count=1000, workers=1)
    pid = next(answers)[1][1]
    answers.close()
    assert gone(pid)


def test_an_error_in_a_batch_is_raised_here_with_the_traceback_of_the_worker():
    with pytest.raises(ValueError, match="batch 0 makes no sense") as found:
        list(run(Squares(failing=(0,)), workers=1))
    assert "works.py" in "".join(found.value.__notes__)


def test_an_error_of_a_type_that_only_the_worker_knows():
    with pytest.raises(EngineError, match=r"^Odd: batch 0 makes no sense") as found:
        list(run(Squares(failing=(0,), strange=True), workers=1))
    assert "works.py" in "".join(found.value.__notes__)


@pytest.mark.parametrize("deadly", [(), (1,)])
def test_what_a_worker_has_started_ends_with_it(deadly):
    """It keeps the worker's pipes open, and would be waited for."""
    answers = run(Squares(parent=True, deadly=deadly), workers=1)
    child = next(answers)[1][1]
    if deadly:
        others = dict(answers)
        assert isinstance(others[1], Poisoned)
        assert all(gone(answer[1]) for number, answer in others.items() if number != 1)
    else:
        answers.close()
    assert gone(child)


def test_what_workers_write_takes_no_memory(monkeypatch):
    kept = []

    def keep_last(stream, said):
        kept.append(said)
        _keep_last(stream, said)

    monkeypatch.setattr("genprior.engines.local._keep_last", keep_last)
    list(run(Squares(wordy=10**6), workers=1))
    assert 10**3 < len(kept[0]) < 10**5


def test_the_cards_of_a_lost_worker_go_to_the_one_in_its_place(monkeypatch):
    numbers = []

    def head(*given, number):
        numbers.append(number)
        return Head(*given, number=number)

    monkeypatch.setattr("genprior.engines.local.Head", head)
    found = dict(run(Squares(deadly=(1,), seconds=0.2), count=3))
    assert isinstance(found[1], Poisoned)
    assert sorted(numbers[:2]) == [0, 1] and len(numbers) >= 4 and set(numbers) == {0, 1}


def test_a_worker_that_cannot_start_is_explained_by_its_last_words():
    with pytest.raises(EngineError, match=r"exit code 3 \(no luck today\)"):
        list(run(Squares(broken="exit"), workers=1))


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(EngineError, match=r"cannot be sent to workers.*generator"):
        list(run(number for number in range(3)))


def test_workers_and_what_they_started_end_when_the_driver_is_killed():
    script = (
        "from genprior import engines\n"
        "from tests.engines.works import Squares\n"
        "batches = engines.Batches(Squares(hanging=(1,), parent=True), range(2), lambda number, whole: (number, whole))\n"
        "for number, answer in engines.Local(1).run(batches):\n"
        "    print(answer[1], flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        worker = int(driver.stdout.readline())
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert gone(worker)


@pytest.mark.parametrize(("argument", "value"), [("workers", 0), ("threads", 1.5), ("batch_seconds", -1.0)])
def test_arguments_are_checked(argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        engines.Local(**({"workers": 2} | {argument: value}))
