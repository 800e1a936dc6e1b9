"""Words and numbers of the page, without a browser."""

import math

import pytest

from genprior.app.snapshot import Lane
from genprior.app.view.chart import _series
from genprior.app.view.race_panel import _share
from genprior.app.view.results import _detail, _table


@pytest.mark.parametrize(
    "seconds, words", [(150, "150 s each"), (20 / 3, "6.7 s each"), (2500, "2500 s each"), (0.1, "0.1 s each")]
)
def test_seconds_are_told_in_plain_digits(seconds, words):
    assert _share(seconds, 600) == f"{words}: the solvers share 600 s."


def test_an_error_that_means_nothing_is_a_dash():
    lane = Lane("Adam", points=((0.1, math.nan, 3.0), (0.2, math.nan, 2.0)), status="OUT_OF_TIME")
    assert _detail(lane) == "error –" and "<td>–</td><td>2</td>" in _table((lane,))
    assert _series(lane, 1)["data"] == [] and _series(lane, 2)["data"] == [[0.1, 3.0], [0.2, 2.0]]
