"""Words and numbers of the page, without a browser."""

import math
import re

import pytest

from genprior.app import registry
from genprior.app.snapshot import Lane
from genprior.app.view.chart import _series
from genprior.app.view.race_panel import _share
from genprior.app.view.results import _detail
from genprior.app.view.verdicts import advice, table
from genprior.status import Status


@pytest.mark.parametrize(
    "seconds, words", [(150, "150 s each"), (20 / 3, "6.7 s each"), (2500, "2500 s each"), (0.1, "0.1 s each")]
)
def test_seconds_are_told_in_plain_digits(seconds, words):
    assert _share(seconds, 600) == f"{words}: the solvers share 600 s."


def test_an_error_that_means_nothing_is_a_dash():
    lane = Lane("Adam", points=((0.1, math.nan, 3.0), (0.2, math.nan, 2.0)), status="OUT_OF_TIME")
    assert _detail(lane) == "error –" and "<td>–</td><td>2</td>" in table((lane,))
    assert _series(lane, 1)["data"] == [] and _series(lane, 2)["data"] == [[0.1, 3.0], [0.2, 2.0]]


def test_a_visitor_is_not_told_about_python():
    for status in Status:
        lane = Lane(
            "Adam", points=((0.1, 0.2, 3.0),), status=status.name, advice=status.advice, plan="Paper(sigma=None)"
        )
        if status.name in {"CONVERGED", "STALLED", "OUT_OF_TIME", "DIVERGED", "INTERRUPTED"}:  # how a race can end
            assert not re.search(r"[=`_()]|gp\.|result", advice(lane))
        assert "Paper(" not in table((lane,))
    assert all(solver.description.endswith(".") for solver in registry.SOLVERS.values())


def test_what_went_wrong_comes_first():
    good = Lane("Auto", status="OUT_OF_TIME")
    impossible = Lane("LBFGS", status="not possible", problem="<b>needs</b> a smooth loss")
    diverged = Lane("Adam", status="DIVERGED")
    shown = table((good, impossible, diverged))
    assert shown.index("LBFGS") < shown.index("Adam") < shown.index("Auto")
    assert "&lt;b&gt;needs&lt;/b&gt; a smooth loss" in shown
