"""What reports show of signals that are no images."""

import pytest
import torch

from genprior.report.views import as_images, curve_figure, curves


def numbers(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((1, 6, 5), (1, 6, 5)),
        ((3, 6, 5), (3, 6, 5)),
        ((2, 6, 5), (1, 6, 12)),
        ((6, 5), (1, 6, 5)),
        ((40,), (1, 40)),
        ((1, 40), (1, 40)),
        ((12, 400), (8, 400)),
        ((1, 4, 6, 5), (1, 6, 5 + 2 + 5 + 2 + 6)),
    ],
)
def test_every_signal_is_shown_in_some_way(shape, shown):
    assert tuple(as_images(numbers(2, *shape)).shape) == (2, *shown)


def test_volumes_are_cut_in_the_middle_across_each_axis():
    volume = numbers(1, 1, 4, 6, 5)
    image = as_images(volume)[0, 0]
    assert torch.equal(image[:6, :5], volume[0, 0, 2])
    assert torch.equal(image[:4, 7:12], volume[0, 0, :, 3])
    assert torch.equal(image[:4, 14:], volume[0, 0, :, :, 2])


def test_one_plot_for_each_channel_with_a_curve_for_each_method():
    figure = curve_figure({"original": numbers(3, 2, 50), "recovered": numbers(3, 2, 50)})
    drawn = [place for place in figure.axes if place.lines]
    assert len(drawn) == 6 and all(len(place.lines) == 2 for place in drawn)
    assert drawn[0].lines[1].get_label() == "recovered"
    assert curves({"recovered": numbers(1, 1, 50)}).count("data:image/png") == 1


def test_no_peak_of_a_long_signal_is_lost():
    signal = torch.zeros(1, 1, 100_000)
    signal[0, 0, 54_321], signal[0, 0, 77] = 5.0, -3.0
    (line,) = curve_figure({"ecg": signal}).axes[0].lines
    at, values = line.get_data()
    assert len(at) <= 2000 and values.max() == 5 and values.min() == -3
    assert at[values.argmax()] == 54_321 and (at[1:] >= at[:-1]).all()
