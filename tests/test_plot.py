"""Figures and measures for users' scripts."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import pytest
import torch

import genprior as gp


@pytest.fixture(autouse=True)
def plt():
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_a_strip_for_each_label():
    grey = torch.linspace(0, 1, 3 * 4 * 5).reshape(3, 1, 4, 5)
    figure = gp.plot.strips({"grey": grey, "colour": grey.expand(-1, 3, -1, -1).clone().requires_grad_()})
    first, second = (axis.images[0].get_array() for axis in figure.axes)
    assert [axis.get_ylabel() for axis in figure.axes] == ["grey", "colour"]
    assert first.shape == (4, 3 * 5 + 2) and second.shape == (4, 17, 3), "three images and a line between"
    assert first[0, 0] == 0 and first[3, 16] == 255
    assert figure.get_figwidth() == 9 and gp.plot.strips({"a": grey}, width=5).get_figwidth() == 5


def test_other_ranges():
    image = torch.tensor([-1.0, 0.0, 1.0, 2.0]).reshape(1, 1, 1, 4)
    figure = gp.plot.strips({"x": image}, signal_range=(-1, 1))
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 128, 255, 255]]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ({}, {}, "rows is empty"),
        ({"a": torch.zeros(28, 28)}, {}, r"rows\['a'\] has shape \(28, 28\), expected images"),
        ({"a": torch.zeros(2, 2, 8, 8)}, {}, "1 or 3"),
        ({"a": torch.zeros(0, 1, 8, 8)}, {}, "expected images"),
        ({"a": torch.zeros(1, 1, 8, 8)}, {"signal_range": (1, 1)}, "low below high"),
    ],
)
def test_what_is_no_image(rows, options, words):
    with pytest.raises(ValueError, match=words):
        gp.plot.strips(rows, **options)


def test_relative_error_of_each_item():
    truth = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    found = gp.metrics.relative_error(truth + torch.tensor([[0.0, 1.0], [0.0, 2.0]]), truth)
    torch.testing.assert_close(found, torch.tensor([0.2, 1.0]))
    with pytest.raises(ValueError, match=r"signal has shape \(2, 2\), but truth has \(1, 2\)"):
        gp.metrics.relative_error(truth, truth[:1])


def test_matplotlib_is_imported_with_the_first_figure():
    code = "import sys, genprior; genprior.plot.strips; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
