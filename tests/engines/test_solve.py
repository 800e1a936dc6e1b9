"""``gp.solve`` on an engine: the same bits as without one."""

import pytest
import torch

import genprior as gp
from genprior import engines


def problem(count=7):
    generator = gp.load_generator("mnist")
    operator = gp.operators.Gaussian(200, generator.signal_shape, seed=0)
    y = operator(generator(generator.sample_latent(count, seed=5))).detach()
    return gp.Problem(generator, loss=gp.LeastSquares(operator, y))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(one, other, workers=1):
    """Equal bits. Every worker pushes a few samples through G, once, to know how far signals are from each other."""
    for name in ("signal", "z", "w", "objective", "steps", "restart", "primal_residual", "stationarity", "residual"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert (one.status, one.backwards, one.plan) == (other.status, other.backwards, other.plan)
    assert 0 <= one.forwards - other.forwards < workers
    last = one.history.item(6)["objective"], other.history.item(6)["objective"]
    assert torch.equal(*(values[~values.isnan()] for values in last))


def test_processes_give_the_same_bits_and_a_checkpoint_that_continues_here(one_thread, tmp_path):
    options = {"stop": gp.MaxSteps(12), "restarts": 2, "batch_size": 2, "seed": 3}
    here = gp.solve(problem(), **options)
    path = tmp_path / "run.ckpt"
    same(gp.solve(problem(), **options, engine=engines.Local(2), checkpoint=path), here, workers=2)
    same(gp.solve(problem(), **options, checkpoint=path), here, workers=2)


def test_the_engine_that_is_here_gives_the_same_bits_too(one_thread):
    options = {"stop": gp.MaxSteps(5), "batch_size": 3}
    same(gp.solve(problem(), **options, engine=engines.Serial()), gp.solve(problem(), **options))


class _Backwards(engines.Engine):
    """Answers in reverse, as workers of different speed do; interrupts after some answers."""

    def __init__(self, answers=10**6):
        self.answers = answers

    size = 3

    def run(self, batches):
        solve = batches.work.open(engines.Place())
        found = [(number, solve(batches.task(number, False))) for number in batches.numbers]
        yield from found[::-1][: self.answers]
        if self.answers < len(found):
            raise KeyboardInterrupt


def test_answers_in_any_order_make_the_same_result(one_thread):
    options = {"stop": gp.MaxSteps(5), "batch_size": 2}
    same(gp.solve(problem(), **options, engine=_Backwards()), gp.solve(problem(), **options))


def test_after_ctrl_c_what_was_finished_is_kept():
    found = gp.solve(problem(), stop=gp.MaxSteps(5), batch_size=2, engine=_Backwards(answers=1))
    assert found.status[-1] == gp.Status.MAX_STEPS
    assert set(found.status[:-1]) == {gp.Status.INTERRUPTED}


def test_without_a_batch_size_each_worker_has_one_batch():
    seen = []

    class Counting(_Backwards):
        def run(self, batches):
            seen.extend(batches.numbers)
            return super().run(batches)

    gp.solve(problem(), stop=gp.MaxSteps(2), engine=Counting())
    assert seen == [0, 3, 6]


def test_a_time_limit_is_shared_by_the_clock_on_the_wall(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("genprior.loop.spread.time.monotonic", lambda: now[0])
    shares = []

    class Slow(engines.Engine):
        size = 2

        def run(self, batches):
            for first in batches.numbers:
                shares.append(batches.task(first, False).stop.limits()[0])
                now[0] += 1.0
            raise KeyboardInterrupt

    posed = problem(8)
    z0 = posed.generator.sample_latent(8, seed=1)
    gp.solve(posed, stop=gp.Seconds(10.0), z0=z0, batch_size=2, engine=Slow())
    assert shares == pytest.approx([10 * 2 / 4, 9 * 2 / 3, 8.0, 7.0])


def test_the_time_is_shared_by_the_workers_that_there_are_and_limits_each_of_them(monkeypatch):
    monkeypatch.setattr("genprior.loop.spread.time.monotonic", lambda: 100.0)
    shares = []

    class Roomy(engines.Engine):
        size = 1

        def run(self, batches):
            batches.watch(engines.Crew("two workers", 2))
            for first in batches.numbers:
                shares.append((batches.task(first, False).stop.limits()[0], batches.seconds(first)))
            raise KeyboardInterrupt

    posed = problem(8)
    z0 = posed.generator.sample_latent(8, seed=1)
    gp.solve(posed, stop=gp.Seconds(10.0), z0=z0, batch_size=2, engine=Roomy())
    assert shares == [(10 * 2 / 4,) * 2, (10 * 2 / 3,) * 2, (10.0, 10.0), (10.0, 10.0)]


def test_callbacks_and_other_things_are_refused():
    with pytest.raises(ValueError, match=r"callbacks.*engine"):
        gp.solve(problem(1), callbacks=[lambda view: None], engine=engines.Serial())
    with pytest.raises(TypeError, match=r"engines.Local\(workers=4\), got 4"):
        gp.solve(problem(1), engine=4)
