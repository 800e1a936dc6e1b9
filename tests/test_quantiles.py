"""Medians of any number of values: exact for few, near for many, the same in any order, in constant memory."""

import math
import random
import statistics
import sys

import pytest

from genprior import _quantiles
from genprior._quantiles import Quantiles
from genprior.assessment import ResidualSummary
from genprior.jobs.outcome import Outcome


def counted(values):
    found = Quantiles()
    for value in values:
        found.add(value)
    return found


def lognormal(count, seed=0, spread=2.0):
    chance = random.Random(seed)
    return [math.exp(chance.gauss(-3, spread)) for _ in range(count)]


def log_spread(values):
    logs = [math.log(value) for value in values]
    middle = statistics.median(logs)
    return 1.4826 * statistics.median(abs(one - middle) for one in logs)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 101])
def test_few_are_exact(count):
    values = lognormal(count)
    found = counted(values)
    assert found.median() == statistics.median(values) and len(found) == count
    assert [found.ranked(rank) for rank in range(count)] == sorted(values)
    assert found.log_spread() == pytest.approx(log_spread(values), rel=1e-12)


@pytest.mark.parametrize("count", [1000, 1001])
@pytest.mark.parametrize("spread", [0.001, 2.0, 30.0])
def test_many_are_near(monkeypatch, count, spread):
    monkeypatch.setattr(_quantiles, "EXACT", 100)
    values = lognormal(count, spread=spread)
    found = counted(values)
    for rank, value in enumerate(sorted(values)):
        assert found.ranked(rank) == pytest.approx(value, rel=1.001e-3)
    assert found.median() == pytest.approx(statistics.median(values), rel=1.001e-3)
    assert found.log_spread() == pytest.approx(log_spread(values), abs=1.4826 * 2.1e-3)


def test_exact_up_to_a_hundred_thousand():
    values = lognormal(100_001)
    assert counted(values[:-1]).median() == statistics.median(values[:-1])
    binned = counted(values)
    assert binned.median() != statistics.median(values)
    assert binned.median() == pytest.approx(statistics.median(values), rel=1.001e-3)
    assert len(binned._values) == 0 and len(binned._bins) < 20_000


@pytest.mark.parametrize("count", [90, 101, 1000])
def test_the_order_does_not_matter(monkeypatch, count):
    monkeypatch.setattr(_quantiles, "EXACT", 100)
    values = [0.0, *lognormal(count)]
    found = [counted(random.Random(seed).sample(values, len(values))) for seed in range(5)]
    assert len({(one.median(), one.log_spread(), one.ranked(7)) for one in found}) == 1


@pytest.mark.parametrize("exact", [0, 100])
def test_zeros_and_extremes(monkeypatch, exact):
    monkeypatch.setattr(_quantiles, "EXACT", exact)
    found = counted([0.0, 0.0, 0.0, sys.float_info.max / 2, 5e-324])
    assert found.median() == 0.0 and found.ranked(4) == pytest.approx(sys.float_info.max / 2, rel=1.001e-3)
    assert found.log_spread() == 0.0
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"value must be a finite number of at least 0"):
            found.add(wrong)
    assert len(found) == 5 and math.isnan(Quantiles().median()) and math.isnan(Quantiles().log_spread())


def test_a_summary_of_residuals(monkeypatch):
    values = lognormal(1000, spread=1.0)
    exact = ResidualSummary.of([None, math.nan, *values])
    assert exact.count == 1000 and exact.median == statistics.median(values) and exact.good == sorted(values)[250]
    monkeypatch.setattr(_quantiles, "EXACT", 100)
    near = ResidualSummary.of(values)
    assert (near.median, near.good) == (pytest.approx(exact.median, rel=1e-3), pytest.approx(exact.good, rel=1e-3))
    assert near.spread == pytest.approx(exact.spread, abs=4e-3) and near != exact
    none = ResidualSummary.of([None])
    assert none.count == 0 and math.isnan(none.median) and math.isnan(none.good)


def batch(first, values):
    items = [{"status": "SETTLED", "reach": 0.5, "residual": value, "error": value / 2} for value in values]
    run = {"seconds": 1.0, "forwards": 2, "backwards": 1, "elapsed": float(first)}
    return {"first": first, "plan": "a plan", "items": items, "run": run}


def test_an_outcome_keeps_no_items(monkeypatch, tmp_path):
    monkeypatch.setattr(_quantiles, "EXACT", 100)
    values, numbers = lognormal(3000, spread=0.5), []
    for seed in range(3):
        outcome = Outcome(3000, tmp_path, tmp_path)
        for first in random.Random(seed).sample(range(0, 3000, 50), 60):
            outcome.add(batch(first, values[first : first + 50]))
        for value in random.Random(seed).sample(values, 3000):
            outcome.judge({"status": "SETTLED", "attention": "lost" if value > 0.2 else None, "residual": value})
        numbers.append(outcome.numbers())
        assert [item["residual"] for item in outcome.first] == sorted(values)[:-11:-1]
        assert len(outcome.own.residuals._values) == 0 and outcome.counted == 3000
    assert numbers[0] == numbers[1] == numbers[2]
    assert numbers[0]["median_residual"] == pytest.approx(statistics.median(values), rel=1e-3)
    assert numbers[0]["median_error"] == pytest.approx(statistics.median(values) / 2, rel=1e-3)
    assert numbers[0]["attention"] == {"lost": sum(value > 0.2 for value in values)} and numbers[0]["forwards"] == 120
