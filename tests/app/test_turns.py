"""Taking turns."""

import threading

import pytest

from genprior.app.turns import TurnLock


def run_all(turns, runners, work):
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(runners)]
    for thread in reversed(threads):  # whoever comes first: the circle has its own order
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("runners", [1, 2, 5])
def test_one_at_a_time_and_in_turn(runners):
    turns, log, inside = TurnLock(runners), [], []

    def work(number):
        with turns.run(number):
            for _ in range(20):
                inside.append(number)
                assert len(inside) == 1
                log.append(number)
                inside.remove(number)
                turns.pass_on(number)

    run_all(turns, runners, work)
    assert log == list(range(runners)) * 20


def test_who_leaves_early_or_breaks_does_not_stop_the_others():
    turns, log = TurnLock(3), []

    def work(number):
        try:
            with turns.run(number):
                for turn in range(3):
                    log.append(number)
                    if number == 0:
                        return
                    if number == 1 and turn == 1:
                        raise RuntimeError
                    turns.pass_on(number)
        except RuntimeError:
            pass

    run_all(turns, 3, work)
    assert log == [0, 1, 2, 1, 2, 2]
