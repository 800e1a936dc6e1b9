"""Every batch is answered exactly once, whatever happens to the workers."""

import pytest

from genprior.engines.base import Batches, Blind, EngineError, Poisoned
from genprior.engines.dispatch import Patience, dispatch
from genprior.engines.pool import Answered
from tests.engines.scripted import Scripted, at_random
from tests.engines.works import Squares


def run(pool, numbers, workers=3, patience=None, **options):
    batches = Batches(Squares(), numbers, options.pop("task", lambda number, whole: number), **options)
    return dispatch(pool, batches, workers, patience or Patience(deaths=10**6, batch_seconds=100.0), pool.clock)


@pytest.mark.parametrize("deadly", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("seed", range(8))
def test_each_batch_is_answered_once_under_random_deaths(seed, deadly):
    pool = Scripted(at_random(seed, deadly))
    found = list(run(pool, range(200), workers=1 + seed))
    assert sorted(number for number, _ in found) == list(range(200))
    assert all(answer == number for number, answer in found)
    assert pool.closed
    assert pool.most_alive <= 1 + seed


def test_a_worker_that_is_free_gets_the_next_batch_before_the_answer_is_used():
    pool = Scripted(lambda worker, task: (1.0, "answer"))
    answers = run(pool, range(3), workers=1)
    next(answers)
    assert [task for _, task in pool.sent] == [0, 1]


def test_numbers_are_drawn_only_when_a_worker_is_free():
    drawn = []
    pool = Scripted(lambda worker, task: (1.0, "answer"))
    answers = run(pool, (drawn.append(n) or n for n in range(10**6)), workers=2)
    for _ in range(5):
        next(answers)
    answers.close()
    assert len(drawn) <= 5 + 2 + 1
    assert pool.closed


def test_a_batch_that_takes_three_workers_along_is_set_aside_and_the_rest_goes_on():
    crews = []
    pool = Scripted(lambda worker, task: (1.0, "die" if task == 5 else "answer"))
    found = dict(run(pool, range(9), patience=Patience(), watch=crews.append))
    assert isinstance(found[5], Poisoned)
    assert "3 workers" in found[5].reason and "lightning" in found[5].reason
    assert [task for _, task in pool.sent].count(5) == 3
    assert {n: a for n, a in found.items() if n != 5} == {n: n for n in range(9) if n != 5}
    assert (crews[-1].deaths, crews[-1].retries, crews[-1].poisoned) == (3, 2, 1)


def test_where_every_batch_takes_workers_along_the_job_stops_instead_of_setting_all_aside():
    pool = Scripted(lambda worker, task: (1.0, "die"))
    with pytest.raises(EngineError, match=r"workers are lost with every batch.*lightning.*smaller"):
        list(run(pool, range(100), patience=Patience()))
    assert pool.closed


def test_a_worker_that_hangs_is_stopped_and_its_batch_goes_to_another():
    pool = Scripted(lambda worker, task: (1.0, "hang" if worker == 1 else "answer"))
    found = dict(run(pool, range(10), patience=Patience(batch_seconds=7.0)))
    assert found == {n: n for n in range(10)}
    assert pool.stopped == [1]
    assert 7.0 <= pool.now < 20.0


@pytest.mark.parametrize(
    ("own", "longest", "deaths", "limit"),
    [
        (None, 0.0, 0, float("inf")),
        (None, 1.0, 0, 600),
        (None, 1.0, 2, 600 * 16),
        (None, 100, 0, 2000),
        (10, 0, 0, 130),
        (500, 0, 1, 1000),
    ],
)
def test_limits_follow_from_the_batch_or_from_the_longest_one(own, longest, deaths, limit):
    assert Patience().limit(own, longest, deaths) == limit
    assert Patience(batch_seconds=3.0).limit(own, longest, deaths) == 3.0


def test_a_batch_that_is_slow_but_does_not_hang_is_given_more_time_when_it_is_repeated():
    """The first batch ends at once, such as one whose files cannot be read; the others take 20 minutes."""
    pool = Scripted(lambda worker, task: (0.1 if task == 0 else 1200.0, "answer"))
    assert dict(run(pool, range(6), patience=Patience())) == {n: n for n in range(6)}


def test_that_a_worker_does_not_see_the_inputs_says_nothing_about_the_time_that_a_batch_takes():
    class Unseeing(Scripted):
        def send(self, worker, task):
            number, whole = task
            blind = Blind(f"file {number} is not there")
            self._at(1200.0 if whole else 0.1, Answered(worker, number if whole else blind))

    pool, crews = Unseeing(lambda worker, task: (1.0, "answer")), []
    found = dict(run(pool, range(6), patience=Patience(), task=lambda n, whole: (n, whole), watch=crews.append))
    assert found == {n: n for n in range(6)}
    assert crews[-1].deaths == 0
    assert len(crews[-1].notes) == 1


def test_workers_whose_answers_wait_for_a_slow_driver_do_not_count_as_hung():
    pool = Scripted(lambda worker, task: (1.0, "answer"))
    found = []
    for answer in run(pool, range(100), workers=20, patience=Patience(batch_seconds=30.0)):
        pool.now += 10.0  # such as a slow disk
        found.append(answer)
    assert sorted(found) == [(n, n) for n in range(100)]
    assert pool.stopped == []


def test_where_workers_begin_to_die_of_everything_the_job_stops_instead_of_setting_the_rest_aside():
    pool = Scripted(lambda worker, task: (1.0, "die" if task > 10 else "answer"))
    found = []
    with pytest.raises(EngineError, match=r"workers are lost with every batch.*lightning"):
        found.extend(run(pool, range(100), patience=Patience()))
    assert sum(isinstance(answer, Poisoned) for _, answer in found) == 4


def test_the_number_that_is_solved_at_a_time_is_that_of_the_workers_which_there_are():
    """All that are wanted, until answers come: then those that are alive."""
    seen = []
    pool = Scripted(
        lambda worker, task: (1.0, "answer"), starts=lambda worker: (1.0, "ready" if worker < 3 else "hang")
    )
    for _ in run(pool, range(10), workers=4, watch=lambda crew: seen.append((crew.answered, crew.alive, crew.at_once))):
        pass
    assert all(at_once == (alive if answered else 4) for answered, alive, at_once in seen[:-1])
    assert (8, 2, 2) in seen


def test_workers_that_cannot_start_end_the_job_with_their_reason():
    pool = Scripted(lambda worker, task: (1.0, "answer"), starts=lambda worker: (1.0, "gone"))
    with pytest.raises(EngineError, match=r"can start.*died young"):
        list(run(pool, range(10)))
    assert pool.closed


def test_without_any_worker_the_wait_is_limited():
    pool = Scripted(lambda worker, task: (1.0, "answer"), starts=lambda worker: (1.0, "hang"))
    with pytest.raises(EngineError, match="no worker of a scripted pool was ready within 50 s"):
        list(run(pool, range(10), patience=Patience(start_seconds=50.0)))
    assert 50.0 <= pool.now < 60.0


def test_one_worker_that_starts_is_enough():
    pool = Scripted(
        lambda worker, task: (1.0, "answer"), starts=lambda worker: (1.0, "ready" if worker == 2 else "gone")
    )
    assert dict(run(pool, range(20))) == {n: n for n in range(20)}


def test_a_worker_that_cannot_see_the_inputs_gets_them_from_then_on():
    class Partly(Scripted):
        def send(self, worker, task):
            whole = task[1]
            self.sent.append((worker, task))
            self._at(1.0, Answered(worker, task if whole or worker == 2 else Blind("no such folder")))

    pool, crews = Partly(lambda worker, task: (1.0, "answer")), []
    found = dict(run(pool, range(10), workers=2, task=lambda n, whole: (n, whole), watch=crews.append))
    assert {n: a[0] for n, a in found.items()} == {n: n for n in range(10)}
    assert [task for worker, task in pool.sent if worker == 1][:2] == [(0, False), (0, True)]
    assert all(whole for worker, (_, whole) in pool.sent[2:] if worker == 1)
    assert not any(whole for worker, (_, whole) in pool.sent if worker == 2)
    assert crews[-1].notes == ["inputs are sent to workers that cannot read them (no such folder)"]


def test_a_worker_that_cannot_use_the_contents_either_ends_the_job():
    class Never(Scripted):
        def send(self, worker, task):
            self._at(1.0, Answered(worker, Blind("no such folder")))

    with pytest.raises(EngineError, match="no such folder"):
        list(run(Never(lambda worker, task: (1.0, "answer")), range(10)))


def test_the_task_of_a_batch_is_made_anew_when_it_is_handed_out_again():
    made = []
    pool = Scripted(lambda worker, task: (1.0, "die" if worker == 1 else "answer"))
    dict(run(pool, [7], workers=1, task=lambda number, whole: made.append(number) or number))
    assert made == [7, 7]


def test_no_batches_need_no_workers():
    pool = Scripted(lambda worker, task: (1.0, "answer"))
    assert list(run(pool, [])) == []
    assert pool.most_alive == 0
    assert pool.closed
