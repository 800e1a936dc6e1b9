"""The table of activations, against differences on a fine grid."""

import pytest
import torch
from torch import nn

from genprior.theory.proved.activations import _TABLE, activation_of

GRID = torch.linspace(-9, 9, 180_001, dtype=torch.float64)
MODULES = [kind() for kind in _TABLE] + [nn.ELU(0.5), nn.ELU(2.0), nn.CELU(0.5), nn.Softplus(3.0), nn.LeakyReLU(0.3)]
MODULES += [
    nn.LeakyReLU(1.7),
    nn.LeakyReLU(-0.4),
    nn.ELU(-0.5),
    nn.PReLU(init=2.0),
    nn.PReLU(init=-0.5),
    nn.Hardtanh(-2, 0.5),
]
MODULES += [nn.GELU(approximate="tanh"), nn.Softplus(0.5, 30.0)]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_facts(module):
    known = activation_of(module)
    values = module.double()(GRID).detach()
    slopes = values.diff() / GRID.diff()
    jumps = slopes.diff().abs() / GRID.diff()[1:]
    assert slopes.abs().max() <= known.steepest * (1 + 1e-6) and slopes.abs().max() >= 0.98 * known.steepest
    assert known.increasing == bool(slopes[GRID[1:].abs() < 4].min() > 1e-7)
    assert known.smooth == bool(jumps.max() < 1e3)
    if known.smooth:
        assert jumps.max() <= known.curvature * (1 + 1e-2) and jumps.max() >= 0.97 * known.curvature


@pytest.mark.parametrize("module", MODULES, ids=str)
@pytest.mark.parametrize(("low", "high"), [(-3.0, -1.0), (-0.5, 2.0), (0.25, 1.0)])
def test_slopes_over_an_interval_contain_all_secants(module, low, high):
    known = activation_of(module)
    points = torch.linspace(low, high, 4001, dtype=torch.float64)
    slopes = module.double()(points).detach().diff() / points.diff()
    least, most = known.slopes(torch.tensor([low]).double(), torch.tensor([high]).double())
    assert least <= slopes.min() + 1e-6 and slopes.max() <= most + 1e-6
    if known.smooth and known.increasing:
        assert slopes.min() - least < 2e-3 and most - slopes.max() < 2e-3, "and they are tight"


def test_options_for_which_nothing_is_claimed():
    """A softplus that jumps, or falls; a CELU whose exponential grows to the left."""
    for module in (nn.Softplus(1.0, 0.5), nn.Softplus(-1.0), nn.Softplus(1.0, 19.0), nn.CELU(-1.0)):
        assert activation_of(module) is None
    jump = nn.Softplus(1.0, 0.5)(torch.tensor([0.5, 0.5000001]).double()).diff().abs()
    assert jump > 0.4, "log(1 + exp(-1/2))"


def test_unknown():
    assert activation_of(nn.Softmax(dim=1)) is None
    assert activation_of(nn.Linear(2, 2)) is None
