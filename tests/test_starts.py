"""Starts from a pool, rounds of starts for items that end badly, and the minima that are found on the way."""

import math

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.generators import Passes
from genprior.generators import pool as pools
from genprior.loop.restarts import Restarts
from genprior.loop.starts import Starts, nearest
from genprior.status import Status
from tests.resuming import assert_same_run

F64 = torch.float64


def hard_problem(seed=10, items=8):
    """A small ReLU network and few measurements: many local minima."""
    random = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 16)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7, generator=random)
    generator = gp.Generator(module, 4, 16)
    operator = gp.operators.Gaussian(5, (16,), seed=1, dtype=F64)
    y = operator(generator(generator.sample_latent(items, seed=7))).detach()
    return gp.Problem(generator, gp.LeastSquares(operator, y))


def generator():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 10), nn.Unflatten(1, (2, 5)))
    return gp.Generator(net.double(), 3, (2, 5))


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_a_pool_is_the_beginning_of_every_larger_one():
    G, other = generator(), generator()
    small = G.pool(20)
    assert len(small) == 32, "whole blocks"
    large, at_once = G.pool(96), other.pool(96)
    assert torch.equal(large.latents[:32], small.latents)
    assert torch.equal(large.latents, at_once.latents)
    torch.testing.assert_close(large.signals, at_once.signals, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(large.signals, G(large.latents).detach(), rtol=1e-12, atol=1e-14)
    assert not torch.equal(generator().pool(32, seed=1).latents, small.latents)


def test_a_pool_is_drawn_once_and_counted_by_the_rows_of_a_pass():
    G = generator()
    G.pool(64, rows=20)
    assert G.forwards == math.ceil(64 / 20)
    G.pool(32)
    assert G.forwards == 4, "remembered"
    G.pool(96, rows=20)
    assert G.forwards == 4 + math.ceil(32 / 20), "only the new samples"
    G.forget()
    G.pool(16, rows=20)
    assert G.forwards == 4 + 2 + 1


def test_a_pool_follows_the_weights():
    G = generator()
    before = G.pool(16).signals
    with torch.no_grad():
        G.module[2].bias += 1.0
    torch.testing.assert_close(G.pool(16).signals, before + 1.0)


def test_a_pool_has_a_bounded_size(monkeypatch):
    monkeypatch.setattr(pools, "LARGEST", 13 * 40)
    assert len(generator().pool(512)) == 32
    monkeypatch.setattr(pools, "LARGEST", 1)
    assert len(generator().pool(512)) == 16, "a block at least"


def test_no_sample_of_a_pool_is_one_of_sample_latent():
    G = generator()
    for seed in range(5):
        drawn = torch.cat([G.sample_latent(64, other) for other in range(5)])
        assert float(torch.cdist(G.pool(64, seed).latents, drawn).min()) > 0


def test_a_single_item_looks_at_few_samples_and_has_starts_for_all_rounds():
    problem = hard_problem(items=1)
    passes = Passes()
    found = nearest(problem.counting(passes), 1, Restarts().most, 0)
    assert passes.forwards == pools.BLOCK < Restarts().most == found.order.shape[1]
    pool = problem.generator.pool(32, 0)
    known = problem.start_scores(pool.signals[: pools.BLOCK], 1).argsort(dim=1)
    assert torch.equal(found.order[:, : pools.BLOCK], known)
    assert found.order[0, pools.BLOCK :].tolist() == list(range(pools.BLOCK, Restarts().most))
    assert torch.equal(found.latents, pool.latents), "those that were not looked at are the pool's next ones"
    again = Starts.drawn(problem.generator, found.order, 0)
    assert torch.equal(again.latents, found.latents)


# -- which candidates come first ---------------------------------------------------------------------------------------

ITEMS = 5
SIGNALS = torch.randn(7, 2, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(ITEMS, 2, 5, dtype=F64, generator=torch.Generator().manual_seed(2))
WEIGHTS = torch.rand(ITEMS, dtype=F64, generator=torch.Generator().manual_seed(3)) + 0.5


def least_squares(operator):
    return gp.LeastSquares(operator, operator(Y))


def masks():
    kept = torch.rand(ITEMS, 2, 5, generator=torch.Generator().manual_seed(4)) > 0.4
    return gp.operators.Mask(kept.double(), per_item=True)


def far(power):
    """A loss that is shared by all items."""
    return gp.EmpiricalRisk(lambda w, s: (w.flatten(1) @ s.mT).abs() ** power, torch.ones(3, 10, dtype=F64))


LOSSES = {
    "dense": least_squares(gp.operators.Gaussian(4, (2, 5), seed=0, dtype=F64)),
    "a mask for each item": least_squares(masks()),
    "fourier": least_squares(
        gp.operators.SubsampledFourier(torch.tensor([1.0, 0, 1, 1, 0]).bool().expand(2, 5), (2, 5), dtype=F64)
    ),
    "distance": gp.SquaredDistance(Y, WEIGHTS),
    "shared": far(2),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_scores_of_a_loss_are_its_values_pair_by_pair(loss):
    expected = torch.stack(
        [torch.stack([loss.rows(torch.tensor([i]))(s[None])[0] for s in SIGNALS]) for i in range(ITEMS)]
    )
    torch.testing.assert_close(loss.start_scores(SIGNALS, ITEMS), expected, rtol=1e-9, atol=1e-12)


TERMS = {
    "l1": (gp.L1().around(Y), lambda x: x.abs().sum()),
    "l_inf by the l2 distance": (gp.LInf().around(Y), torch.linalg.vector_norm),
    "scaled": (WEIGHTS * gp.LInf().around(Y), None),
    "sum": (gp.LInf().around(Y) + 0.5 * gp.L1().around(Y), lambda x: torch.linalg.vector_norm(x) + 0.5 * x.abs().sum()),
}


@pytest.mark.parametrize(("term", "distance"), TERMS.values(), ids=TERMS)
def test_scores_of_a_term(term, distance):
    problem = gp.Problem(generator(), on_signal=term)
    found = problem.start_scores(SIGNALS, ITEMS)
    if distance is None:
        expected = WEIGHTS[:, None] * torch.cdist(Y.flatten(1), SIGNALS.flatten(1))
    else:
        expected = torch.stack([torch.stack([distance(s - y) for s in SIGNALS]) for y in Y])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_outside_of_a_constraint_the_score_is_the_distance():
    box = gp.Box(-0.5, 0.5)
    found = gp.Problem(generator(), on_signal=box).start_scores(SIGNALS, 1)
    expected = torch.linalg.vector_norm(SIGNALS - SIGNALS.clamp(-0.5, 0.5), dim=(1, 2))
    torch.testing.assert_close(found, expected[None])


def test_what_is_not_finite_comes_last():
    module = nn.Linear(3, 10).double()
    G = gp.Generator(nn.Sequential(module, nn.Unflatten(1, (2, 5))), 3, (2, 5))
    scores = gp.Problem(G, gp.SquaredDistance(Y)).start_scores(torch.cat([SIGNALS[:1] * math.nan, SIGNALS[:1]]), ITEMS)
    assert scores[:, 0].isinf().all() and scores[:, 1].isfinite().all()


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_every_item_starts_from_the_nearest_samples(batch, monkeypatch):
    G = generator()
    operator = gp.operators.Gaussian(4, (2, 5), seed=0, dtype=F64)
    problem = gp.Problem(G, gp.LeastSquares(operator, operator(Y)))
    monkeypatch.setattr("genprior.loop.starts._AT_ONCE", batch * 10)
    starts = nearest(problem, ITEMS, 6, seed=3)
    pool = G.pool(48, seed=3)
    distances = torch.stack([torch.stack([(operator((s - y)[None])).norm() for s in pool.signals]) for y in Y])
    assert torch.equal(starts.order, distances.argsort(dim=1)[:, :6])
    chosen = starts.of(torch.tensor([4, 1]), 2, 3)
    assert torch.equal(chosen, pool.latents[starts.order[[4, 1], 2:5].flatten()])


def test_solve_begins_there_and_keeps_to_the_constraint_on_z():
    problem = gp.Problem(generator(), gp.SquaredDistance(Y), on_latent=gp.Ball(0.5))
    seen = []
    gp.solve(
        problem,
        gp.GradientDescent(1e-30),
        stop=gp.MaxSteps(1),
        restarts=3,
        callbacks=[lambda v: seen.append(v.state.z)],
    )
    free = gp.Problem(problem.generator, gp.SquaredDistance(Y))
    expected = gp.Ball(0.5).prox(nearest(free, ITEMS, 3, seed=0).of(torch.arange(ITEMS), 0, 3), 1.0)
    torch.testing.assert_close(seen[0], expected)


def test_other_seeds_give_other_candidates():
    begun = []
    for seed in (0, 1):
        gp.solve(hard_problem(), stop=gp.MaxSteps(0), seed=seed, callbacks=[lambda v: begun.append(v.state.z.clone())])
    assert not torch.equal(*begun)


def test_restored_candidates_cost_no_pass():
    problem = gp.Problem(generator(), gp.SquaredDistance(Y))
    starts = nearest(problem, ITEMS, 4, seed=2)
    fresh = generator()
    again = Starts.drawn(fresh, starts.order, seed=2)
    items = torch.arange(ITEMS)
    assert torch.equal(again.of(items, 0, 4), starts.of(items, 0, 4))
    assert fresh.forwards == 0


def test_passes_and_seconds_of_the_pool_are_those_of_the_run(simulated_clock):
    problem = hard_problem()
    result = gp.solve(problem, gp.GradientDescent(), stop=gp.MaxSteps(3), restarts=1)
    assert (result.forwards, result.backwards) == (8 + 1 + 3, 3)
    assert int(result.history.item(0)["forwards"][0]) == 9


def test_where_limits_do_not_allow_for_a_pool_starts_are_random():
    problem = hard_problem()
    result = gp.solve(problem, gp.GradientDescent(), stop=gp.MaxPasses(9), tolerance=0)
    assert result.forwards + result.backwards == 9
    assert result.steps.tolist() == [4] * 8


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_more_starts_where_they_are_needed_and_never_a_worse_answer(seed):
    one = gp.solve(hard_problem(seed), restarts=1, progress=False)
    found = gp.solve(hard_problem(seed), progress=False)
    done = one.residual <= Restarts().fitted
    assert (found.starts[done] == 1).all(), "items that are done are left alone"
    assert torch.equal(found.z[done], one.z[done])
    assert (found.objective <= one.objective).all()
    assert int((found.residual > 3e-3).sum()) <= int((one.residual > 3e-3).sum())


def test_the_default_solves_what_one_start_does_not():
    lost = {False: 0, True: 0}
    for seed in (4, 8, 11):
        for more in lost:
            options = {} if more else {"restarts": 1}
            lost[more] += int((gp.solve(hard_problem(seed), progress=False, **options).residual > 3e-3).sum())
    assert lost[True] < 0.5 * lost[False]


def test_what_a_later_round_says_is_true_of_its_answer():
    problem = hard_problem()
    found = gp.solve(problem, progress=False)
    again = found.restart >= 1
    assert again.any(), "otherwise this test says nothing"
    torch.testing.assert_close(problem.objective(found.z), found.objective, rtol=1e-9, atol=1e-15)
    assert (found.restart < found.starts).all()
    one = gp.solve(hard_problem(), restarts=1, progress=False)
    assert (found.steps >= one.steps).all(), "those of the first round count too"
    for item in again.nonzero()[:, 0].tolist():
        column = found.history.item(item)
        assert float(column["objective"][-1]) >= float(found.objective[item])
        assert bool((column["step"].diff() > 0).all()) and bool((column["seconds"].diff() >= 0).all())


def test_steps_are_limited_over_all_rounds():
    free, limited = [], []
    gp.solve(hard_problem(), callbacks=[lambda view: free.append(view.step)], progress=False)
    limit = max(free) - 5
    found = gp.solve(
        hard_problem(), stop=gp.MaxSteps(limit), callbacks=[lambda view: limited.append(view.step)], progress=False
    )
    assert max(limited) == limit and int(found.steps.max()) <= limit
    quick = gp.solve(hard_problem(), stop=gp.MaxSteps(4), progress=False)
    assert quick.starts.tolist() == [1] * 8, "stopped by the limit, not at a bad minimum"


def test_observers_see_the_rounds():
    seen = []
    found = gp.solve(
        hard_problem(), callbacks=[lambda v: seen.append((v.step, v.per_item, set(v.items.tolist())))], progress=False
    )
    rounds = {count: set().union(*(items for _, per, items in seen if per == count)) for count in (1, 4, 8, 16)}
    assert rounds[1] == set(range(8))
    assert rounds[4] == set((found.starts > 1).nonzero()[:, 0].tolist())
    assert rounds[16] <= rounds[8] <= rounds[4]
    assert len([1 for step, _, _ in seen if step == 0]) == 1, "steps count on"


class Ticking(nn.Module):
    """Each pass takes a tenth of a second."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, z):
        import time

        time.sleep(0.1)
        return self.net(z)


@pytest.mark.usefixtures("simulated_clock")
@pytest.mark.parametrize("limit", [6.0, 12.0, 20.0])
def test_a_time_limit_holds_over_all_rounds(limit):
    problem = hard_problem()
    slow = gp.Generator(Ticking(problem.generator.module), 4, 16)
    result = gp.solve(gp.Problem(slow, problem.loss), stop=gp.Seconds(limit), tolerance=0, patience=20)
    assert result.seconds < limit + 0.2
    assert Status.OUT_OF_TIME in result.status or int(result.starts.max()) > 1


SHORT = {"seed": 0, "patience": 10, "progress": False}


@pytest.fixture(scope="module")
def whole_run():
    """A run of four rounds, and at which step how many starts of an item ran side by side."""
    watched = []
    whole = gp.solve(hard_problem(12), callbacks=[lambda v: watched.append((v.step, v.per_item))], **SHORT)
    return whole, watched


@pytest.mark.parametrize("how", [True, KeyboardInterrupt(), RuntimeError("crash")], ids=["stop", "ctrl-c", "crash"])
def test_a_run_resumes_in_the_middle_of_a_later_round(tmp_path, whole_run, how):
    whole, watched = whole_run
    later = [[moment for moment in watched if moment[1] == starts][5] for starts in (4, 8)]

    def stop_at(moment):
        def callback(view):
            if (view.step, view.per_item) != moment:
                return False
            if isinstance(how, BaseException):
                raise how
            return True

        return callback

    for at in later:
        first = []
        checkpoint = {"checkpoint": gp.Checkpoint(tmp_path / f"run{at[0]}", steps=3)}
        try:
            gp.solve(hard_problem(12), callbacks=[stop_at(at)], **checkpoint, **SHORT)
        except RuntimeError:
            assert isinstance(how, RuntimeError)
        watch = [lambda v, first=first: first.append((v.step, v.per_item))]
        resumed = gp.solve(hard_problem(12), callbacks=watch, **checkpoint, **SHORT)
        assert first[0][1] == at[1] and at[0] - 4 <= first[0][0] <= at[0], "it did not go on where it was stored"
        assert_same_run(resumed, whole)


def test_batches_have_rounds_of_their_own_and_engines_the_same_bits():
    whole = gp.solve(hard_problem(), batch_size=3, progress=False)
    spread = gp.solve(hard_problem(), batch_size=3, engine=gp.engines.Serial(), progress=False)
    assert int(whole.starts.max()) > 1
    assert_same_run(spread, whole)


def test_an_item_that_stands_out_is_worse_than_the_others():
    rule = Restarts()
    outcome = gp.solve(hard_problem(), restarts=1, progress=False)
    fake = [0.2, 0.21, 0.19, 0.25, 0.2, 0.51, 0.2, 0.2]

    class Ended:
        status = torch.full((8,), int(Status.SETTLED))
        unfit = outcome.unfit
        objective = torch.tensor(fake)

    assert rule.bad(Ended, torch.tensor(fake)).nonzero()[:, 0].tolist() == [5]
    assert rule.bad(Ended, None).nonzero()[:, 0].tolist() == [5], "by the objective"
    Ended.status[5] = int(Status.MAX_STEPS)
    assert not rule.bad(Ended, torch.tensor(fake)).any(), "stopped by its limit"
    assert rule.paid(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.6]))
    assert not rule.paid(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.95]))


# -- all minima that were found ----------------------------------------------------------------------------------------


class Square(nn.Module):
    """``(z^2, z)``: whoever sees the first number only cannot know the sign."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=F64))

    def forward(self, z):
        return torch.cat([z.square(), z], dim=1) * self.one


def test_both_answers_are_candidates():
    G = gp.Generator(Square(), 1, 2)
    mask = gp.operators.Mask(torch.tensor([1.0, 0.0], dtype=F64))
    y = torch.tensor([[0.49, 0.0], [1.44, 0.0]], dtype=F64)
    found = gp.solve(gp.Problem(G, gp.LeastSquares(mask, y)), restarts=8, cull_after=10**6, progress=False)
    for item, root in enumerate((0.7, 1.2)):
        candidates = found.candidates[item]
        assert [round(abs(float(one.z)), 3) for one in candidates] == [root, root]
        assert float(candidates[0].z) * float(candidates[1].z) < 0
        assert torch.equal(candidates[0].signal, found.signal[item])
        assert candidates[0].objective == float(found.objective[item]) <= candidates[1].objective < 1e-6
        assert candidates[1].restart != int(found.restart[item])


def test_candidates_of_rounds_are_minima_of_their_item():
    problem = hard_problem()
    found = gp.solve(problem, progress=False)
    several = [(item, of_item) for item, of_item in enumerate(found.candidates) if len(of_item) > 1]
    assert several
    for item, candidates in several:
        posed = gp.Problem(problem.generator, problem.loss.rows(torch.tensor([item])))
        objectives = [one.objective for one in candidates]
        assert objectives[0] == min(objectives) and objectives[1:] == sorted(objectives[1:])
        for number, one in enumerate(candidates):
            torch.testing.assert_close(float(posed.objective(one.z[None])), one.objective, rtol=1e-8, atol=1e-14)
            assert one.restart < int(found.starts[item])
            for other in candidates[:number]:
                assert float((one.signal - other.signal).norm()) > 0.01 * float(one.signal.norm())


def test_with_one_start_the_answer_is_the_only_candidate():
    problem = hard_problem()
    result = gp.solve(problem, z0=problem.generator.sample_latent(8, seed=3), stop=gp.MaxSteps(30), progress=False)
    assert [len(of_item) for of_item in result.candidates] == [1] * 8
    assert result.starts.tolist() == [1] * 8 and result.restarts == 1
