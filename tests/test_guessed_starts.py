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
    plain = nearest(problem, 8, 64, seed=0)
    found = nearest(problem, 8, 64, seed=0, guess=Given(guess))
    A, y = problem.loss.observed()
    own = (A(problem.generator(guess)) - y).norm(dim=1)
    pool = problem.generator.pool(len(plain.latents)).signals
    better = torch.stack([(A(pool) - one).norm(dim=1) for one in y]) < own[:, None]
    place = (found.order == -1).nonzero()
    assert torch.equal(place[:, 0], torch.arange(8)), "once for each item"
    assert torch.equal(place[:, 1], better.sum(dim=1).clamp_min(1)), "never before the nearest sample"
    assert (place[:4, 1] == 1).all() and (place[4:, 1] > 1).any(), "otherwise this test says nothing"
    assert torch.equal(found.order[:, 0], plain.order[:, 0])
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
    assert torch.equal(found.of(torch.arange(items), 1, 1), latents(items))


def test_terms_and_masks_of_items_rank_guesses_too():
    generator = hard_problem().generator
    truth = latents(5)
    x = generator(truth).detach()
    kept = torch.rand(5, 16, generator=torch.Generator().manual_seed(1)) > 0.3
    A = gp.operators.Mask(kept, per_item=True, dtype=F64)
    for problem in (gp.Problem(generator, gp.LeastSquares(A, A(x))), gp.Problem(generator, None, gp.LInf().around(x))):
        assert (nearest(problem, 5, 2, seed=0, guess=Given(truth)).order[:, 1] == -1).all()


# -- no harm -----------------------------------------------------------------------------------------------------------


SHORT = {"stop": gp.MaxSteps(60), "progress": False}


@pytest.mark.parametrize("restarts", [3, None])
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
    first, second = (gp.solve(hard_problem(), start=Given(one), restarts=2, **SHORT) for one in (guess, centre))
    assert_same_run(first, second)


@pytest.mark.parametrize("seed", [4, 8])
def test_a_guess_at_a_bad_minimum_makes_no_answer_worse(seed):
    """The worst that an encoder can do: its guesses fit better than every sample, but lead nowhere."""
    one = gp.solve(hard_problem(seed), restarts=1, progress=False)
    traps = hard_problem(seed).generator.sample_latent(8, seed=1)
    trapped = gp.solve(hard_problem(seed), z0=traps, progress=False)
    found = gp.solve(hard_problem(seed), start=Given(trapped.z), progress=False)
    solved = one.residual <= 3e-3
    assert solved.any() and torch.equal(found.z[solved], one.z[solved]), "these keep their answers, bit by bit"
    assert (found.objective <= one.objective).all()


def test_a_good_guess_solves_what_the_samples_do_not():
    lost = {}
    for name, start in {"pool": None, "near": Given(latents() + 0.02)}.items():
        found = [gp.solve(hard_problem(seed), progress=False, start=start) for seed in (1, 3, 10)]
        lost[name] = sum(int((result.residual > 3e-3).sum()) for result in found)
    assert lost["pool"] > lost["near"] == 0


def test_the_constraint_on_z_holds_for_guesses():
    problem = gp.Problem(hard_problem().generator, hard_problem().loss, on_latent=gp.Ball(0.5))
    seen = []
    start = Given(latents())
    gp.solve(problem, stop=gp.MaxSteps(0), restarts=2, start=start, callbacks=[lambda v: seen.append(v.state.z)])
    assert (seen[0].norm(dim=1) <= 0.5 + 1e-12).all()


@pytest.mark.parametrize("passes", [9, 40])
def test_guesses_keep_to_limits(passes):
    """Of nine passes none is spent on them; of forty they may be, where there is a pool."""
    guess = Given(latents())
    plain = gp.solve(hard_problem(), stop=gp.MaxPasses(passes), tolerance=0, restarts=2)
    found = gp.solve(hard_problem(), stop=gp.MaxPasses(passes), tolerance=0, restarts=2, start=guess)
    assert found.forwards + found.backwards <= passes + 1, "no step is cut in half"
    assert torch.equal(found.z, plain.z) == (passes == 9)


# -- stored runs -------------------------------------------------------------------------------------------------------


def test_a_run_with_guesses_resumes(tmp_path):
    """In the first of two batches: the second one starts from the stored guesses."""
    guess, halves = Given(latents() + 0.1), {"restarts": 2, "batch_size": 4}
    whole = gp.solve(hard_problem(), start=guess, **halves, **SHORT)

    def crash(view):
        if view.step == 20:
            raise RuntimeError("crash")

    stored = {"checkpoint": gp.Checkpoint(tmp_path / "run", steps=8), **halves, **SHORT}
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
        ({"start": Given(latents()), "restarts": 1}, ValueError, "leave `restarts` out or give at least 2"),
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
