"""Stop rules: alone, combined, shared over chunks, and in a solve."""

import time
from dataclasses import dataclass

import pytest
import torch

import genprior as gp
from genprior.status import Status
from genprior.stopping import StopRule
from tests.checks.parts import tiny_problem


def view(step=0, seconds=0.0, forwards=0, backwards=0, best=(0.0,)):
    rows, best = torch.arange(len(best)), torch.tensor(best)
    blank = torch.zeros(len(best), 1)
    return gp.View(step, seconds, forwards, backwards, rows, 1, 0, None, best, blank, blank)


def codes(verdict):
    return None if verdict is None else verdict.tolist()


@dataclass(frozen=True)
class Fixed(StopRule):
    """Gives the same verdict always."""

    says: list[int] | None

    def verdict(self, view):
        return None if self.says is None else torch.tensor(self.says)


@pytest.mark.parametrize(
    ("rule", "before", "at", "status"),
    [
        (gp.MaxSteps(5), view(step=4), view(step=5), Status.MAX_STEPS),
        (gp.Seconds(2.0), view(seconds=1.99), view(seconds=2.0), Status.OUT_OF_TIME),
        (gp.MaxPasses(7), view(forwards=4, backwards=2), view(forwards=4, backwards=3), Status.OUT_OF_PASSES),
    ],
)
def test_simple_rules(rule, before, at, status):
    assert rule.verdict(before) is None
    assert codes(rule.verdict(at)) == [status]


def test_target_judges_each_item():
    verdict = gp.Target(0.5).verdict(view(best=(0.4, 0.5, 0.6, float("nan"), float("inf"))))
    assert codes(verdict) == [Status.TARGET, Status.TARGET, 0, 0, 0]


ITEMS_A, ITEMS_B, ALL = [0, 2, 2, 0], [0, 0, 6, 6], [Status.MAX_STEPS] * 4


@pytest.mark.parametrize(
    ("a", "b", "either", "both"),
    [
        (None, None, None, None),
        (ALL, None, ALL, None),
        (None, ITEMS_B, ITEMS_B, None),
        (ALL, ITEMS_B, ALL, ITEMS_B),
        (ITEMS_A, ALL, [4, 2, 2, 4], [0, 4, 4, 0]),
        (ITEMS_A, ITEMS_B, [0, 2, 2, 6], [0, 0, 6, 0]),
    ],
)
def test_either_and_both(a, b, either, both):
    assert codes((Fixed(a) | Fixed(b)).verdict(view())) == either
    assert codes((Fixed(a) & Fixed(b)).verdict(view())) == both


def test_nesting():
    rule = (gp.Target(0.5) & gp.MaxSteps(10)) | gp.MaxSteps(20) | gp.Seconds(9.0)
    best = (0.1, 0.9)
    assert codes(rule.verdict(view(step=9, best=best))) is None
    assert codes(rule.verdict(view(step=10, best=best))) == [Status.MAX_STEPS, 0]
    assert codes(rule.verdict(view(step=10, seconds=9.0, best=best))) == [Status.MAX_STEPS, Status.OUT_OF_TIME]
    late = gp.MaxSteps(10) & (gp.Target(0.5) | gp.Seconds(1.0))
    assert codes(late.verdict(view(step=9, seconds=5.0, best=best))) is None
    assert codes(late.verdict(view(step=10, best=best))) == [Status.TARGET, 0]


def test_shares_of_the_time():
    assert gp.Seconds(10.0).share(4.0, 3) == gp.Seconds(2.0)
    assert gp.Seconds(10.0).share(12.0, 3) == gp.Seconds(0.0)
    assert gp.MaxSteps(7).share(4.0, 3) == gp.MaxSteps(7)
    either = (gp.MaxSteps(7) | gp.Seconds(10.0)).share(4.0, 2)
    assert either == (gp.MaxSteps(7) | gp.Seconds(3.0))
    nested = (gp.Target(1.0) & (gp.Seconds(10.0) | gp.MaxPasses(3))).share(4.0, 2)
    assert nested == (gp.Target(1.0) & (gp.Seconds(3.0) | gp.MaxPasses(3)))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: gp.MaxSteps(-1), ValueError, "steps must be at least 0"),
        (lambda: gp.MaxSteps(2.5), TypeError, "steps must be a whole number"),
        (lambda: gp.MaxSteps(True), TypeError, "steps"),
        (lambda: gp.Seconds(-0.1), ValueError, "seconds must be a finite number"),
        (lambda: gp.Seconds(float("inf")), ValueError, "seconds"),
        (lambda: gp.Seconds("1"), TypeError, "seconds must be a number"),
        (lambda: gp.MaxPasses(-1), ValueError, "passes must be at least 0"),
        (lambda: gp.Target(float("nan")), ValueError, "objective"),
        (lambda: gp.MaxSteps(1) | 5, TypeError, r"write MaxSteps\(500\) \| Seconds"),
        (lambda: gp.MaxSteps(1) & None, TypeError, "stop rules combine with stop rules"),
        (lambda: gp.solve(tiny_problem(), stop=100), TypeError, "stop must be a stop rule"),
    ],
)
def test_bad_values(make, error, message):
    with pytest.raises(error, match=message):
        make()


# -- in a solve ------------------------------------------------------------------------------------------------------


def test_no_steps_return_the_start():
    z0 = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    problem = tiny_problem()
    result = gp.solve(problem, gp.ExactADMM(), stop=gp.MaxSteps(0), z0=z0)
    assert torch.equal(result.z, z0)
    assert torch.equal(result.objective, problem.objective(z0))
    assert result.status == (Status.MAX_STEPS,) * 4
    assert result.steps.tolist() == [0] * 4
    assert (result.forwards, result.backwards) == (1, 0)


@pytest.mark.parametrize("steps", [1, 3, 5, 12])
def test_exactly_as_many_steps(steps):
    made = []
    problem = tiny_problem()
    z0 = problem.generator.sample_latent(4, seed=1)
    watch = [lambda view: made.append(view.step)]
    result = gp.solve(problem, gp.GradientDescent(), stop=gp.MaxSteps(steps), z0=z0, callbacks=watch)
    assert result.steps.tolist() == [steps] * 4
    assert made == list(range(steps + 1)), "the start, and every step, the last one too"
    assert (result.forwards, result.backwards) == (steps + 1, steps)
    assert result.history.item(0)["step"].tolist() == list(range(steps + 1))


def slow_problem(items=4):
    """A pass forward takes a hundredth of a second."""
    problem = tiny_problem(items)
    problem.generator.module.register_forward_hook(lambda *_: time.sleep(0.01))
    return problem


@pytest.mark.usefixtures("simulated_clock")
def test_seconds():
    result = gp.solve(slow_problem(), stop=gp.Seconds(0.15), tolerance=0, patience=10**9)
    assert result.status == (Status.OUT_OF_TIME,) * 4
    assert 0.15 <= result.seconds < 0.2
    assert int(result.steps[0]) > 1


@pytest.mark.usefixtures("simulated_clock")
def test_seconds_are_shared_over_chunks():
    result = gp.solve(slow_problem(), stop=gp.Seconds(0.3), tolerance=0, patience=10**9, batch_size=1)
    assert result.status == (Status.OUT_OF_TIME,) * 4
    assert 0.3 <= result.seconds < 0.4
    spent = [result.history.item(item)["seconds"][-1].item() for item in range(4)]
    assert all(0.05 < seconds < 0.12 for seconds in spent)


def test_target_stops_only_the_items_that_reached_it():
    problem = tiny_problem(8)
    free = gp.solve(problem, gp.GradientDescent(), stop=gp.MaxSteps(60), tolerance=0)
    target = 1.5 * free.objective.median().item()
    result = gp.solve(problem, gp.GradientDescent(), stop=gp.MaxSteps(60) | gp.Target(target), tolerance=0)
    reached = torch.tensor([status is Status.TARGET for status in result.status])
    assert 0 < int(reached.sum()) < 8
    assert torch.equal(reached, free.objective <= target)
    assert bool((result.objective[reached] <= target).all())
    assert bool((result.steps[~reached] == 60).all())
    for item in reached.nonzero()[:, 0].tolist():
        best = free.history.item(item)["objective"].cummin(dim=0).values
        assert int(result.steps[item]) == int((best <= target).nonzero()[0]), "stopped late or early"


def test_passes():
    result = gp.solve(tiny_problem(), gp.GradientDescent(), stop=gp.MaxPasses(21))
    assert result.status == (Status.OUT_OF_PASSES,) * 4
    assert result.forwards + result.backwards == 21
    assert result.steps.tolist() == [10] * 4


@pytest.mark.parametrize("answer", [0, Status.TARGET, True, torch.tensor(0), torch.zeros(3)])
def test_what_is_no_verdict_is_refused(answer):
    class Odd(StopRule):
        def verdict(self, view):
            return answer

    with pytest.raises(TypeError, match="verdict must be None, or a tensor with one status code for each of 4 rows"):
        gp.solve(tiny_problem(), stop=Odd())


def test_passes_are_those_of_the_batch():
    result = gp.solve(tiny_problem(), gp.GradientDescent(), stop=gp.MaxPasses(21), batch_size=2)
    assert result.steps.tolist() == [10] * 4


def test_own_rule():
    @dataclass(frozen=True)
    class Odd(StopRule):
        def verdict(self, view):
            return torch.where((view.items % 2 == 1) & (view.step >= 3), int(Status.TARGET), 0)

    result = gp.solve(tiny_problem(), stop=Odd() | gp.MaxSteps(9))
    assert result.steps.tolist() == [9, 3, 9, 3]
    assert result.status == (Status.MAX_STEPS, Status.TARGET, Status.MAX_STEPS, Status.TARGET)


def test_restarts_are_culled_at_any_step():
    running = []
    gp.solve(
        tiny_problem(),
        gp.GradientDescent(),
        stop=gp.MaxSteps(30),
        tolerance=0,
        restarts=4,
        cull_after=7,
        callbacks=[lambda view: running.append(len(view.items))],
    )
    assert running[7:9] == [16, 8]
    assert running[14:16] == [8, 4]


def test_a_target_that_is_never_met_changes_nothing():
    """Residuals are measured when they are due, whatever rules are asked besides."""
    free, aimed = (gp.solve(tiny_problem(), stop=rule) for rule in (gp.MaxSteps(15), gp.MaxSteps(15) | gp.Target(-1.0)))
    assert torch.equal(free.z, aimed.z)
    for name in ("objective", "gap", "stationarity"):
        ours, theirs = (one.history.item(0)[name] for one in (aimed, free))
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


# -- the discrepancy principle -----------------------------------------------------------------------------------------


def noisy_problem(items=6, sigma=0.05, noise="loss", seed=0):
    torch.manual_seed(3)
    G = gp.Generator(torch.nn.Sequential(torch.nn.Linear(4, 200), torch.nn.Tanh()), (4,), (200,))
    A = gp.operators.Mask(torch.arange(200) % 4 > 0)
    x = G(G.sample_latent(items, seed=7)).detach()
    y = A.measured(x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
    return gp.Problem(
        G, gp.LeastSquares(A, y, noise=sigma if noise == "loss" else None), on_latent=0.1 * gp.SquaredL2()
    )


@pytest.mark.parametrize("restarts", [1, 4])
@pytest.mark.parametrize("rule", [gp.Discrepancy(), gp.Discrepancy(factor=1.5), gp.Discrepancy(0.05)])
def test_what_is_said_to_fit_the_noise_does(rule, restarts):
    problem = noisy_problem(noise="loss" if rule.noise is None else "rule")
    result = gp.solve(problem, stop=rule | gp.MaxSteps(200), restarts=restarts, seed=1)
    judged = noisy_problem().loss.misfit(result.signal).ratio  # of the returned signal, 150 measurements each
    said = torch.tensor([status is Status.FITS_NOISE for status in result.status])
    assert bool(said.any())
    assert bool((judged[said] <= rule.factor * 1.0001).all())
    assert bool((judged[~said] > rule.factor * 0.9999).all())
    assert all(status.good for status in result.status if status is Status.FITS_NOISE)
    assert (result.misfit is None) == (rule.noise is not None)
    if result.misfit is not None:
        torch.testing.assert_close(result.misfit.ratio, judged)
        assert "times that of the noise" in result.summary()


def test_items_end_alone_as_in_a_batch():
    problem = noisy_problem()
    together = gp.solve(problem, stop=gp.Discrepancy(factor=1.3) | gp.MaxSteps(60), restarts=1, seed=1)
    assert len(set(together.steps.tolist())) > 1
    assert bool((together.misfit.value <= 1.3 * together.misfit.expected)[together.steps < 60].all())


def test_a_better_restart_that_does_not_fit_is_not_passed_over():
    """The objective, with its term on z, and the misfit may disagree: the answer keeps its own status."""
    loss = gp.LeastSquares(gp.operators.Identity(2), torch.zeros(4, 2), noise=1.0)
    rows, best = torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 2.5])
    signals = torch.tensor([[2.0, 2.0], [0.1, 0.1], [2.0, 2.0], [0.1, 0.1]])
    seen = gp.View(3, 0.0, 0, 0, rows, 2, 5, None, best, signals, signals, loss=loss)
    assert gp.Discrepancy().verdict(seen).tolist() == [0, 0, Status.CULLED, Status.FITS_NOISE]


def test_discrepancy_needs_a_noise_level():
    with pytest.raises(
        ValueError, match=r"Discrepancy needs the noise of the measurements, but the loss is LeastSquares"
    ):
        gp.solve(noisy_problem(noise="rule"), stop=gp.Discrepancy() | gp.MaxSteps(3))
    with pytest.raises(ValueError, match="noise must be a finite number above 0"):
        gp.Discrepancy(0.0)
