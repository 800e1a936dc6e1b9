"""A guess is one more candidate among the starts: it is tried where it fits best, and can do no harm."""

from dataclasses import dataclass

import pytest
import torch

import genprior as gp
from genprior.loop.starts import nearest
from tests.resuming import assert_same_run
from tests.test_starts import hard_problem

F64 = torch.float64


@dataclass(frozen=True)
class Given:
    """Guesses that are known beforehand."""

    latents: torch.Tensor

    def guess(self, problem):
        return self.latents


def latents(items=8, seed=7):
    """With seed 7 those from which the data were made."""
    return hard_problem().generator.sample_latent(items, seed=seed)


# -- where a guess stands among the candidates -------------------------------------------------------------------------


def test_a_guess_stands_where_its_measurements_put_it():
    problem = hard_problem()
    truth, drawn = latents(), latents(seed=3)
    guess = torch.cat([truth[:4], drawn[4:]])
    plain = nearest(problem, 8, 200, seed=0)
    found = nearest(problem, 8, 200, seed=0, guess=Given(guess))
    A, y = problem.loss.observed()
    own = (A(problem.generator(guess)) - y).norm(dim=1)
    pool = problem.generator.pool(len(plain.latents)).signals
    better = torch.stack([(A(pool) - one).norm(dim=1) for one in y]) < own[:, None]
    place = (found.order == -1).nonzero()
    assert torch.equal(place[:, 0], torch.arange(8)), "once for each item"
    assert torch.equal(place[:, 1], better.sum(dim=1))
    assert (place[:4, 1] == 0).all() and (place[4:, 1] > 0).any(), "otherwise this test says nothing"
    for item, (with_guess, without) in enumerate(zip(found.order, plain.order, strict=True)):
        rest = with_guess[with_guess != -1]
        assert torch.equal(rest, without[: len(rest)]), "the samples keep their order"
        at = int(place[item, 1])
        chosen = found.of(torch.tensor([item]), at, 2)
        assert torch.equal(chosen[0], guess[item])
        assert torch.equal(chosen[1], found.latents[without[at]])


@pytest.mark.parametrize("items", [1, 40])
def test_any_number_of_items(items):
    problem = hard_problem(items=items)
    found = nearest(problem, items, 3, seed=0, guess=Given(latents(items)))
    assert torch.equal(found.of(torch.arange(items), 0, 1), latents(items))


def test_terms_and_masks_of_items_rank_guesses_too():
    generator = hard_problem().generator
    truth = latents(5)
    x = generator(truth).detach()
    kept = torch.rand(5, 16, generator=torch.Generator().manual_seed(1)) > 0.3
    A = gp.operators.Mask(kept, per_item=True, dtype=F64)
    for problem in (gp.Problem(generator, gp.LeastSquares(A, A(x))), gp.Problem(generator, None, gp.LInf().around(x))):
        assert (nearest(problem, 5, 1, seed=0, guess=Given(truth)).order == -1).all()


# -- no harm -----------------------------------------------------------------------------------------------------------


SHORT = {"stop": gp.MaxSteps(60), "progress": False}


@pytest.mark.parametrize("restarts", [1, 3, None])
def test_a_guess_that_fits_nothing_changes_no_bit_of_the_answer(restarts):
    without = gp.solve(hard_problem(), restarts=restarts, **SHORT)
    guess = Given(torch.full((8, 4), 1e6, dtype=F64))
    found = gp.solve(hard_problem(), restarts=restarts, start=guess, **SHORT)
    assert torch.equal(found.z, without.z) and torch.equal(found.objective, without.objective)
    assert torch.equal(found.starts, without.starts) and found.status == without.status
    assert found.forwards == without.forwards + 1, "the guess was pushed through once"
    assert found.backwards == without.backwards


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_guess_that_is_not_finite_is_the_centre(bad):
    guess = latents(seed=3)
    guess[2, 1] = bad
    centre = guess.clone()
    centre[2] = 0.0
    first, second = (gp.solve(hard_problem(), start=Given(one), restarts=1, **SHORT) for one in (guess, centre))
    assert_same_run(first, second)


@pytest.mark.parametrize("seed", [4, 8])
def test_a_guess_at_a_bad_minimum_is_made_up_for(seed):
    """The worst that an encoder can do: its guesses fit better than every sample, but lead nowhere."""
    without = gp.solve(hard_problem(seed), progress=False)
    traps = hard_problem(seed).generator.sample_latent(8, seed=1)
    trapped = gp.solve(hard_problem(seed), z0=traps, progress=False)
    found = gp.solve(hard_problem(seed), start=Given(trapped.z), progress=False)
    solved = without.residual <= 3e-3
    assert (found.residual[solved] <= 3e-3).all()


def test_a_good_guess_solves_what_the_samples_do_not():
    lost = {}
    for name, start in {"pool": None, "near": Given(latents() + 0.02)}.items():
        found = [gp.solve(hard_problem(seed), restarts=1, progress=False, start=start) for seed in (4, 8, 11)]
        lost[name] = sum(int((result.residual > 3e-3).sum()) for result in found)
    assert lost["pool"] > 4 and lost["near"] == 0


def test_the_constraint_on_z_holds_for_guesses():
    problem = gp.Problem(hard_problem().generator, hard_problem().loss, on_latent=gp.Ball(0.5))
    seen = []
    start = Given(latents())
    gp.solve(problem, stop=gp.MaxSteps(0), restarts=1, start=start, callbacks=[lambda v: seen.append(v.state.z)])
    assert (seen[0].norm(dim=1) <= 0.5 + 1e-12).all()


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passes", "used"), [(9, False), (40, True)])
def test_a_limit_too_tight_for_a_pool_may_allow_for_a_guess(passes, used):
    """Beside one sample: three passes are little of forty, but not of nine."""
    seen = []
    result = gp.solve(
        hard_problem(items=1),
        stop=gp.MaxPasses(passes),
        tolerance=0,
        restarts=1,
        start=Given(latents(1)),
        callbacks=[lambda v: seen.append(v.state.z.clone())],
    )
    assert result.forwards + result.backwards <= passes
    assert torch.equal(seen[0], latents(1)) == used
    random = gp.solve(hard_problem(items=1), stop=gp.MaxPasses(passes), tolerance=0, restarts=1)
    assert result.steps[0] <= random.steps[0], "its passes count"
    if used:
        assert result.steps[0] < random.steps[0]


def test_tight_limits_and_several_starts():
    found = gp.solve(
        hard_problem(items=1), stop=gp.MaxPasses(60), restarts=20, start=Given(torch.full((1, 4), 1e6, dtype=F64))
    )
    assert found.starts.tolist() == [20]


# -- stored runs -------------------------------------------------------------------------------------------------------


def test_a_run_with_guesses_resumes(tmp_path):
    guess = Given(latents(seed=3) / 2)
    whole = gp.solve(hard_problem(), start=guess, **SHORT)

    def crash(view):
        if view.step == 20:
            raise RuntimeError("crash")

    stored = {"checkpoint": gp.Checkpoint(tmp_path / "run", steps=8), **SHORT}
    with pytest.raises(RuntimeError, match="crash"):
        gp.solve(hard_problem(), start=guess, callbacks=[crash], **stored)
    for other in (None, Given(latents(seed=4))):
        with pytest.raises(ValueError, match="belongs to another run"):
            gp.solve(hard_problem(), start=other, **stored)
    assert_same_run(gp.solve(hard_problem(), start=guess, **stored), whole)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"start": Given(latents()), "z0": latents()}, ValueError, "z0 holds the starts: leave one of them out"),
        ({"start": latents()}, TypeError, "start must be a trained encoder .* got Tensor: give latents as z0"),
        ({"start": torch.nn.Linear(5, 4)}, TypeError, "start must be a trained encoder .* got Linear"),
        ({"start": Given(latents(3))}, ValueError, "the guess of start has 3 latents for 8 items"),
        ({"start": Given(latents()[:, :2])}, ValueError, r"the guess of start has shape \(8, 2\), expected \(B, 4\)"),
        ({"start": Given(latents().float())}, TypeError, "the guess of start has dtype torch.float32"),
        ({"start": Given([1.0])}, TypeError, "start must guess a torch.Tensor of latents, got list"),
    ],
)
def test_what_goes_wrong(options, error, message):
    with pytest.raises(error, match=message):
        gp.solve(hard_problem(), progress=False, **options)
