"""check_term: our terms pass, broken ones fail with the finding that names the fault."""

import pytest
import torch

import genprior as gp
from genprior.checks import check_term

CENTRE = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6)
PER_ITEM = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)

ENVELOPE = "gradient of the envelope is v - prox(v)"
GOOD = {
    "zero": (gp.Zero(), (6,)),
    "l1": (gp.L1(), (6,)),
    "l2": (gp.L2(), (2, 3)),
    "squared l2": (gp.SquaredL2(), (6,)),
    "linf": (gp.LInf(), (6,)),
    "ball": (gp.Ball(1.5), (6,)),
    "box": (gp.Box(-0.5, 1.0), (6,)),
    "l1 ball": (gp.L1Ball(2.0), (6,)),
    "simplex": (gp.Simplex(), (6,)),
    "scaled": (0.3 * gp.L1(), (6,)),
    "per item": (PER_ITEM * gp.L2(), (6,)),
    "around": (gp.LInf().around(CENTRE), (6,)),
    "ball around": (gp.Ball(0.5).around(CENTRE), (6,)),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_good_terms(name, scale):
    term, shape = GOOD[name]
    report = check_term(term, shape, scale=scale)
    assert report.ok, str(report)
    assert len(report.findings) == 7


@pytest.mark.parametrize("name", ["l1", "linf", "ball", "simplex"])
def test_good_terms_in_float32(name):
    term, shape = GOOD[name]
    report = check_term(term, shape, dtype=torch.float32)
    assert report.ok, str(report)


def test_total_variation_as_exact_as_it_claims():
    report = check_term(0.1 * gp.TotalVariation(), (1, 5, 5), dtype=torch.float32)
    assert report.ok, str(report)


class HalvedStep(gp.L1):
    def prox(self, v, t):
        return super().prox(v, 0.5 * t)


class AlmostRight(gp.L1):
    def prox(self, v, t):
        return super().prox(v, 1.001 * t)


class NoStep(gp.L1):
    def prox(self, v, t):
        return v


class AlwaysZero(gp.L1):
    """Its own prox never leads anywhere else, so the rivals must come from elsewhere."""

    def prox(self, v, t):
        return torch.zeros_like(v)


class WholeBatch(gp.LInf):
    """Takes the batch for one long item."""

    def prox(self, v, t):
        step = float(torch.as_tensor(t).flatten()[0])
        return super().prox(v.reshape(1, -1), step).reshape(v.shape)


class BatchMean(gp.SquaredL2):
    def prox(self, v, t):
        return super().prox(v, t) + 1e-3 * v.mean(dim=0)


class NotConvex(gp.L1):
    def __call__(self, x):
        return x.abs().sqrt().sum(dim=1)


class WrongSubgradient(gp.L1):
    def subgradient(self, x):
        return -x.sign()


class LongSubgradient(gp.SquaredL2):
    def subgradient(self, x):
        return 2 * super().subgradient(x)


class OneValueForAll(gp.L1):
    def __call__(self, x):
        return x.abs().sum()


class Outside(gp.Ball):
    def prox(self, v, t):
        return 1.01 * super().prox(v, t)


class SometimesNaN(gp.L1):
    def __call__(self, x):
        return super().__call__(x) + torch.where(x.abs().amax(dim=1) > 2, torch.nan, 0.0)


class Broken(gp.L1):
    def prox(self, v, t):
        return v.no_such_method()


BAD = {
    "halved step": (HalvedStep(), "prox inequality", "prox is not the minimiser"),
    "a thousandth too long": (AlmostRight(), "prox inequality", "prox is not the minimiser"),
    "no step": (NoStep(), "prox inequality", "prox is not the minimiser"),
    "always zero": (AlwaysZero(), "prox inequality", "prox is not the minimiser"),
    "whole batch": (WholeBatch(), "items do not influence each other", "compute per item"),
    "batch mean": (BatchMean(), "items do not influence each other", "compute per item"),
    "not convex": (NotConvex(), "convex", "the value is not convex"),
    "wrong subgradient": (WrongSubgradient(), "subgradient inequality", "subgradient is wrong"),
    "long subgradient": (LongSubgradient(), "subgradient inequality", "subgradient is wrong"),
    "one value for all": (OneValueForAll(), "one value per item", "return (B,)"),
    "outside": (Outside(1.0), "prox is feasible", "prox leaves the domain"),
    "sometimes NaN": (SometimesNaN(), "prox inequality", "prox is not the minimiser"),
    "does not run": (Broken(), "runs", "see the message"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("seed", [0, 1])
def test_bad_terms(name, seed):
    term, law, advice = BAD[name]
    report = check_term(term, (6,), seed=seed)
    failed = {finding.law: finding for finding in report.failures}
    assert law in failed, str(report)
    text = str(report)
    for part in (law, failed[law].measured, advice):
        assert part in text
    with pytest.raises(ValueError, match="FAIL"):
        report.raise_if_failed()


@pytest.mark.parametrize("name", ["wrong subgradient", "long subgradient", "batch mean"])
def test_only_the_broken_law_is_blamed(name):
    term, law, _ = BAD[name]
    blamed = {finding.law for finding in check_term(term, (6,)).failures}
    assert blamed <= {law, "prox inequality", ENVELOPE} if name == "batch mean" else blamed == {law}


def test_same_seed_same_report():
    assert str(check_term(HalvedStep(), (6,), seed=3)) == str(check_term(HalvedStep(), (6,), seed=3))


class Weighted(gp.L1):
    """``weight |x|_1``, to be broken in one place."""

    weight = 1.0

    def __call__(self, x):
        return self.weight * super().__call__(x)

    def prox(self, v, t):
        return super().prox(v, self.weight * self.step(torch.as_tensor(t, dtype=v.dtype)))

    def step(self, t):
        return t

    def subgradient(self, x):
        return self.weight * super().subgradient(x)


class TwiceTheStep(Weighted):
    def step(self, t):
        return 2 * t


class StepForgotten(Weighted):
    def step(self, t):
        return torch.ones_like(t)


class RootOfTheStep(Weighted):
    def step(self, t):
        return t.sqrt()


class OnePercent(Weighted):
    def step(self, t):
        return 1.01 * t


class LongSubgradient(Weighted):
    def subgradient(self, x):
        return 1.01 * super().subgradient(x)


class NoSubgradient(Weighted):
    def subgradient(self, x):
        return torch.zeros_like(x)


class MixedValues(Weighted):
    def __call__(self, x):
        return super().__call__(x).mean().expand(len(x))


class Roots(Weighted):
    """Not convex; for large weights its prox is zero."""

    def __call__(self, x):
        return self.weight * x.flatten(1).abs().sqrt().sum(1)

    def prox(self, v, t):
        return torch.zeros_like(v)

    def subgradient(self, x):
        return torch.zeros_like(x)


class Count(Roots):
    """The number of entries that are not zero, with its hard threshold."""

    def __call__(self, x):
        return self.weight * (x.flatten(1) != 0).sum(1).to(x)

    def prox(self, v, t):
        level = 2 * self.weight * torch.as_tensor(t, dtype=v.dtype)
        return torch.where(v.square() > level.reshape(-1, *(1,) * (v.ndim - 1)), v, 0.0)


MISTAKES = [
    *((kind, ENVELOPE) for kind in (TwiceTheStep, StepForgotten, RootOfTheStep, OnePercent)),
    *((kind, "subgradient inequality") for kind in (LongSubgradient, NoSubgradient)),
    (MixedValues, "items do not influence each other"),
    *((kind, "convex") for kind in (Roots, Count)),
]


@pytest.mark.parametrize("weight", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("kind", "law"), MISTAKES, ids=[kind.__name__ for kind, _ in MISTAKES])
@pytest.mark.parametrize("shape", [(10,), (28, 28)], ids=str)
def test_mistakes_show_at_every_size_and_weight(kind, law, shape, weight):
    term = kind()
    object.__setattr__(term, "weight", weight)
    blamed = {finding.law for finding in check_term(term, shape).failures}
    zero_either_way = kind is StepForgotten and weight == 100  # the inequality tells, the envelope cannot
    assert ("prox inequality" if zero_either_way else law) in blamed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("name", GOOD)
def test_right_terms_are_not_blamed_at_any_scale(name, scale, dtype):
    term, shape = GOOD[name]
    report = check_term(term.to(dtype), shape, scale=scale, dtype=dtype)
    assert report.ok, str(report)


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_total_variation_in_float64(weight):
    report = check_term(weight * gp.TotalVariation(), (8, 8))
    assert report.ok, str(report)


def test_a_class_in_place_of_a_term():
    with pytest.raises(TypeError, match=r"got a class: write gp.L1\(...\), with brackets"):
        check_term(gp.L1, 3)
