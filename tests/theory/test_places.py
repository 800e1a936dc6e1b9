"""Where numbers live: torch's defaults do not matter, and nothing becomes float64 before it is on the CPU."""

import json
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import genprior as gp
from genprior.theory import certify, check_proposition1, constants, loss_constants

BALL = 2.0


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.bump = nn.Linear(3, 8), nn.Sequential(nn.Linear(3, 8), nn.Sigmoid())

    def forward(self, z):
        return self.line(z) + self.bump(z)

    def branches(self):
        return self.line, self.bump


def curved():
    """Every kind of layer that makes tensors of its own on the way to its bounds."""
    return nn.Sequential(
        Residual(),
        nn.LeakyReLU(0.2),
        nn.Unflatten(1, (2, 2, 2)),
        nn.Upsample(scale_factor=2.0, mode="bilinear"),
        nn.ConvTranspose2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )


NETWORKS = {"curved": curved, "affine": lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 48))}


def problems(name):
    torch.manual_seed(0)
    generator = gp.Generator(NETWORKS[name](), 3, 48)
    target = 0.3 * generator.sample_latent(2, seed=4)
    signals = generator(target).detach()
    operator = gp.operators.Gaussian(20, (48,), seed=1)
    seen = gp.LeastSquares(operator, operator(signals) + 0.1)
    return target, [
        gp.Problem(generator, gp.SquaredDistance(signals, torch.tensor([0.3, 0.7])), on_latent=gp.Ball(BALL)),
        gp.Problem(generator, seen),
    ]


def everything(target, posed):
    """All that is computed, as text: NaN equals NaN."""
    generator = posed[0].generator
    found = constants(generator, BALL, points=4, moves=2)
    assert len(check_proposition1(generator, chain=found.chain).findings) > 2
    texts = [json.dumps(found.to_dict()), str(check_proposition1(generator))]
    for problem in posed:
        certificate = certify(problem, BALL, z0=0.5 * target, target=target, known=found)
        if certificate.guarantee.applies:
            texts.append(str(certificate.guarantee.bounds(3)["signal"].tolist()))
        texts.append(json.dumps([certificate.to_dict(), loss_constants(problem, BALL, points=8).to_dict()]))
    return texts


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("defaults", [default_dtype, lambda: torch.device("meta")], ids=["dtype", "device"])
def test_the_defaults_of_torch_do_not_matter(name, defaults):
    case = problems(name)
    plain = everything(*case)
    with defaults():
        other = everything(*case)
    assert other == plain


class NoFloat64(TorchFunctionMode):
    """Every float32 tensor is taken to be on a device without float64, unless it comes from what ``.cpu()`` brought home."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        home = all(getattr(x, "home", False) or x.dtype not in (torch.float32, torch.complex64) for x in given)
        if func is Tensor.cpu:
            found = found.clone()
            found.home = True
        elif func == Tensor.data.__set__:  # how a module takes the tensors that it was converted to
            args[0].home = getattr(args[1], "home", False)
        elif given and func is not Tensor.to:
            for x in tree_leaves(found):
                if isinstance(x, Tensor):
                    x.home = home
        if not home and any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tree_leaves(found)):
            raise TypeError(f"the device has no float64 ({func})")
        return found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_without_float64(name):
    """As those of Apple are."""
    case = problems(name)
    plain = everything(*case)
    with NoFloat64():
        with pytest.raises(TypeError, match="no float64"):
            case[1][0].generator(case[0]).double().cpu()
        assert case[1][0].generator(case[0]).cpu().double().dtype == torch.float64
        assert everything(*case) == plain
