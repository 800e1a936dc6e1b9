"""Which iterate is the best so far: by score, finite ones before all others, each item by itself."""

from types import SimpleNamespace

import pytest
import torch

from genprior.loop.rows import Best

INF, NAN = float("inf"), float("nan")


def state(scores, objectives=None, number=0):
    """An iterate whose signals are its number; without ``objectives`` the score is the objective: no term forbids points."""
    score = torch.tensor(scores)
    place = torch.full((len(scores), 2), float(number))
    objective = score if objectives is None else torch.tensor(objectives)
    return SimpleNamespace(score=score, objective=objective, z=place, x=place + 10, w=place + 20)


def chosen(old, new, *, forbids=False):
    best = Best.of(old).updated(new, forbids=forbids)
    number = best.z[:, 0]
    assert torch.equal(best.x, best.z + 10) and torch.equal(best.w, best.z + 20)
    source = torch.where(number == 1, new.score, old.score)
    torch.testing.assert_close(best.score, source, equal_nan=True)
    return number.tolist()


@pytest.mark.parametrize("apart", [False, True], ids=["the score is the objective", "equal numbers"])
def test_by_score_item_by_item(apart):
    first, second = [3.0, 3.0, 3.0, INF, 3.0, 3.0], [2.0, 4.0, 3.0, 7.0, NAN, -INF]
    old = state(first, first if apart else None)
    new = state(second, second if apart else None, number=1)
    assert chosen(old, new, forbids=apart) == [1, 0, 0, 1, 0, 0]


def test_all_or_none_are_better():
    old, lower, higher = state([3.0, 3.0]), state([1.0, 2.0], number=1), state([4.0, 3.0], number=1)
    assert chosen(old, lower) == [1, 1]
    best = Best.of(old)
    assert best.updated(higher, forbids=False) is best


def test_a_feasible_iterate_comes_before_any_other():
    old = state([1.0, 1.0, 9.0, 9.0], [INF, 1.0, INF, INF])
    new = state([5.0, 0.5, 5.0, 9.5], [5.0, INF, INF, INF], number=1)
    assert chosen(old, new, forbids=True) == [1, 0, 1, 0]
    best = Best.of(old).updated(new, forbids=True)
    torch.testing.assert_close(best.objective, torch.tensor([5.0, 1.0, INF, INF]))
