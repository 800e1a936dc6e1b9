"""The table: each instance is a way to make an operator and its explicit matrix. A new operator is one line here."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from genprior import operators as ops

from . import reference as ref

F64 = torch.float64
ITEMS = 3


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def coin(*shape, seed=0):
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., *(0,) * min(2, len(shape))] = True
    return mask


def rank_deficient(m, d, rank):
    return random(m, rank, seed=1) @ random(rank, d, seed=2)


@dataclass(frozen=True)
class Instance:
    name: str
    make: Callable[[], ops.Operator]
    matrix: Callable[[ops.Operator], np.ndarray]
    method: str = "conjugate gradient"
    row_form: bool = False
    exact_bounds: bool = True

    def __str__(self):
        return self.name


def dense(name, matrix, shape=None, row_form=True):
    return Instance(name, lambda: ops.Dense(matrix, shape), lambda _: matrix.numpy(), "thin SVD", row_form)


def blur(name, kernel, shape, kernels, axes=2, per_item=False, **told):
    """``kernels`` gives the kernel(s) as numpy, one per item where they differ; ``axes`` is how many the reference takes."""

    def matrix(_):
        planes = [ref.channels(ref.convolution(k, shape[-axes:]), shape, axes) for k in kernels()]
        return np.stack(planes) if per_item else planes[0]

    return Instance(name, lambda: ops.Blur(kernel, shape, per_item=per_item, dtype=F64, **told), matrix, "FFT")


def gaussian_blur(name, sigma, shape, axes=2, **told):
    return blur(name, sigma, shape, lambda: [ref.gaussian_kernel(sigma, shape[-axes:])], axes, **told)


def fourier(name, frequencies, shape, axes=2, **options):
    """``axes`` is how many the reference transforms."""

    def matrix(a):
        size = shape[-axes:]
        masks = a._mask.numpy() if isinstance(frequencies, int) else frequencies.numpy()
        if options.get("centred"):
            masks = np.fft.ifftshift(masks, axes=tuple(range(-axes, 0)))
        planes = [ref.channels(ref.fourier(m), shape, axes) for m in masks.reshape(-1, *size)]
        return np.stack(planes) if options.get("per_item") else planes[0]

    return Instance(name, lambda: ops.SubsampledFourier(frequencies, shape, dtype=F64, **options), matrix, "FFT")


def mask(name, weights, shape=None, per_item=False):
    def matrix(a):
        wide = np.broadcast_to(weights.numpy(), (*weights.shape[:per_item], *a.signal_shape)).astype(float)
        items = wide.reshape(wide.shape[0], -1) if per_item else [wide.reshape(-1)]
        planes = [np.diag(item) for item in items]
        return np.stack(planes) if per_item else planes[0]

    return Instance(name, lambda: ops.Mask(weights, shape, per_item=per_item, dtype=F64), matrix, "diagonal", True)


def downsample(factor, shape, axes=2, **told):
    return Instance(
        f"downsample {factor} {shape} {told or ''}",
        lambda: ops.Downsample(factor, shape, **told),
        lambda _: ref.channels(ref.averaging(factor, shape[-axes:]), shape, axes),
        "orthogonal rows",
        True,
    )


def hadamard(m, shape):
    return Instance(
        f"hadamard {m} {shape}",
        lambda: ops.SubsampledHadamard(m, shape, seed=3, dtype=F64),
        ref.hadamard,
        "orthogonal rows",
        True,
    )


def linear(name, make, matrix):
    return Instance(name, make, lambda _: matrix.numpy(), exact_bounds=False)


def weighted(name, weights, part, method="conjugate gradient", **facts):
    """``diag(weights) A`` with the weights of one item, or of each."""

    def matrix(_):
        rows = weights.numpy().reshape(len(weights), -1, 1) if len(weights) == ITEMS else weights.numpy().reshape(-1, 1)
        return rows * known(part)

    return Instance(name, lambda: ops.Weighted(weights, part.make()), matrix, method, **facts)


def composed(name, outer, inner):
    def matrix(_):
        return outer.matrix(outer.make()) @ inner.matrix(inner.make())

    return Instance(name, lambda: outer.make() @ inner.make(), matrix, exact_bounds=False)


def known(part):
    """The reference matrix of a part."""
    return part.matrix(part.make())


def times(name, factor, part, method=None, **facts):
    """``factor * part``; a tensor is one factor for each item."""
    facts = {"row_form": part.row_form, "exact_bounds": part.exact_bounds} | facts

    def matrix(_):
        return factor.numpy()[:, None, None] * known(part) if isinstance(factor, torch.Tensor) else factor * known(part)

    return Instance(name, lambda: factor * part.make(), matrix, method or part.method, **facts)


def added(name, *parts, signs=None, **facts):
    signs = signs or [1] * len(parts)

    def make():
        total = parts[0].make()
        for sign, part in zip(signs[1:], parts[1:], strict=True):
            total = total + part.make() if sign == 1 else total - part.make()
        return total

    def matrix(_):
        return sum(sign * known(part) for sign, part in zip(signs, parts, strict=True))

    return Instance(name, make, matrix, **({"exact_bounds": False} | facts))


def transposed(part, **facts):
    method = part.method if part.row_form or part.method == "FFT" else f"push-through identity ({part.method}"
    facts = {"method": method, "exact_bounds": part.exact_bounds} | facts
    return Instance(f"{part.name}, transposed", lambda: part.make().T, lambda _: known(part).swapaxes(-1, -2), **facts)


def stacked(name, *parts, **facts):
    def matrix(_):
        blocks = [known(part) for part in parts]
        if any(block.ndim == 3 for block in blocks):
            blocks = [np.broadcast_to(block, (ITEMS, *block.shape[-2:])) for block in blocks]
        return np.concatenate(blocks, axis=-2)

    return Instance(name, lambda: ops.Stack(*(part.make() for part in parts)), matrix, **facts)


WIDE, TALL = random(5, 12), random(14, 6)
KERNEL, EVEN, KERNELS = random(3, 3), random(4, 2), random(ITEMS, 3, 2)
MASK, MASKS, FREQUENCIES = coin(6, 5), coin(ITEMS, 2, 4), coin(ITEMS, 4, 6)

BLUR = blur("blur tensor", KERNEL, (6, 5), lambda: [KERNEL.numpy()])
SMOOTH = gaussian_blur("blur sigma channels", 0.8, (2, 4, 6))
LINE, LINES, CUBE = random(3), random(ITEMS, 4), random(2, 3, 1)
MASKED = mask("mask", MASK)
MANY_MASKS = mask("mask per item, broadcast", coin(ITEMS, 4, 6, seed=5)[:, None], (2, 4, 6), per_item=True)

MIX = composed("per item mask after blur", MANY_MASKS, SMOOTH)

POSITIVE = 0.2 + random(ITEMS, 4, seed=6).abs()
INSTANCES = [
    Instance("identity", lambda: ops.Identity((2, 3)), lambda _: np.eye(6), "diagonal", True),
    weighted("weighted matrix", POSITIVE[0], dense("", random(4, 7)), "thin SVD", row_form=True),
    weighted("weighted tall matrix", 0.2 + random(7, seed=3).abs(), dense("", random(7, 4)), "thin SVD"),
    weighted("weighted matrix per item", POSITIVE, dense("", random(4, 7)), exact_bounds=False),
    weighted("weighted means", POSITIVE, downsample(2, (8,), 1), "orthogonal rows", row_form=True),
    weighted("weighted fourier", 0.2 + random(7, seed=5).abs(), fourier("", 3, (7,), 1), exact_bounds=False),
    dense("dense m<d", WIDE),
    dense("dense m<d image", WIDE, (1, 3, 4)),
    dense("dense m=d", random(7, 7)),
    dense("dense m>d", TALL, row_form=False),
    dense("dense m=1", random(1, 4)),
    dense("dense d=1", random(3, 1), row_form=False),
    dense("dense rank deficient", rank_deficient(6, 9, 3)),
    dense("dense tall rank deficient", rank_deficient(9, 6, 3), row_form=False),
    dense("dense zero", torch.zeros(3, 5, dtype=F64)),
    dense("dense per item m<d", random(ITEMS, 4, 6), (2, 3)),
    dense("dense per item m>d", random(ITEMS, 6, 4), row_form=False),
    Instance(
        "gaussian",
        lambda: ops.Gaussian(5, (1, 4, 3), seed=2, dtype=F64),
        lambda a: a.matrix.numpy(),
        "thin SVD",
        True,
    ),
    MASKED,
    mask("mask broadcast", MASK, (2, 6, 5)),
    mask("mask vector", torch.tensor([1, 0, 0, 1, 1])),
    mask("mask weights", random(3, 4).abs()),
    mask("mask per item", MASKS, per_item=True),
    MANY_MASKS,
    BLUR,
    SMOOTH,
    blur("blur even kernel", EVEN, (2, 5, 4), lambda: [EVEN.numpy()]),
    gaussian_blur("blur wide sigma", 3.0, (4, 5)),
    blur("blur per item", KERNELS, (2, 3, 4), lambda: list(KERNELS.numpy()), per_item=True),
    gaussian_blur("blur sigma 1-D", 0.9, (7,), 1),
    gaussian_blur("blur sigma 1-D channels", 0.9, (2, 7), 1, dims=1),
    gaussian_blur("blur sigma rows of images", 0.9, (2, 3, 4), 1, dims=1),
    gaussian_blur("blur sigma 3-D", 0.7, (2, 3, 2, 4), 3),
    gaussian_blur("blur sigma 3-D without channels", 0.7, (3, 2, 4), 3, dims=3),
    gaussian_blur("blur sigma elongated image", 0.7, (2, 6), dims=2),
    blur("blur tensor 1-D", LINE, (6,), lambda: [LINE.numpy()], 1),
    blur("blur tensor 1-D tells the axes", LINE, (2, 7), lambda: [LINE.numpy()], 1),
    blur("blur tensor 2-D tells the axes", EVEN, (9, 2), lambda: [EVEN.numpy()]),
    blur("blur tensor 3-D", CUBE, (2, 2, 3, 4), lambda: [CUBE.numpy()], 3),
    blur("blur per item 1-D channels", LINES, (2, 6), lambda: list(LINES.numpy()), 1, per_item=True),
    downsample(2, (6,), 1),
    downsample(3, (2, 6), 1, dims=1),
    downsample(2, (3, 2, 4), 1, dims=1),
    downsample(2, (2, 6), 2, dims=2),
    downsample(2, (2, 2, 4, 2), 3),
    downsample(2, (4, 2, 2), 3, dims=3),
    downsample(2, (4, 6)),
    downsample(3, (2, 3, 6)),
    downsample(1, (3, 2)),
    fourier("fourier random", 7, (2, 4, 5)),
    fourier("fourier one", 1, (3, 3)),
    fourier("fourier full", 20, (4, 5)),
    fourier("fourier mask odd", coin(5, 7), (5, 7)),
    fourier("fourier centred", coin(5, 4), (1, 5, 4), centred=True),
    fourier("fourier per item", FREQUENCIES, (2, 4, 6), per_item=True),
    fourier("fourier 1-D", 3, (7,), 1),
    fourier("fourier 1-D even", coin(8), (8,), 1),
    fourier("fourier 1-D channels", 4, (2, 7), 1, dims=1),
    fourier("fourier 1-D mask tells the axes, centred", coin(6), (2, 6), 1, centred=True),
    fourier("fourier 1-D per item", coin(ITEMS, 6), (2, 6), 1, per_item=True),
    fourier("fourier 3-D", 11, (2, 3, 2, 4), 3),
    fourier("fourier 3-D odd, centred", coin(3, 2, 5), (3, 2, 5), 3, dims=3, centred=True),
    fourier("fourier 3-D per item", coin(ITEMS, 2, 3, 4), (1, 2, 3, 4), 3, per_item=True),
    hadamard(5, (8,)),
    hadamard(6, (1, 7, 2)),
    hadamard(16, (16,)),
    hadamard(1, (1,)),
    hadamard(50, (2, 50)),
    linear(
        "linear with adjoint",
        lambda: ops.Linear(lambda x: x @ WIDE.T, lambda y: y @ WIDE, 12, dtype=F64),
        WIDE,
    ),
    linear(
        "linear by autograd",
        lambda: ops.Linear(lambda x: (x.flatten(1) @ TALL.T).reshape(-1, 2, 7), None, (2, 3), dtype=F64),
        TALL,
    ),
    Instance(
        "linear complex by autograd",
        lambda: ops.Linear(lambda x: torch.fft.fft2(x, norm="ortho"), None, (3, 4), dtype=F64),
        lambda _: ref.fourier(np.ones((3, 4))),
        exact_bounds=False,
    ),
    composed("mask after blur", MASKED, BLUR),
    composed("downsample after blur", downsample(2, (2, 4, 6)), SMOOTH),
    MIX,
    composed("fourier after per item mask", fourier("", 5, (2, 4)), mask("", MASKS, per_item=True)),
    composed("dense after identity", dense("", WIDE), Instance("", lambda: ops.Identity(12), lambda _: np.eye(12))),
]

FACTORS = torch.tensor([0.5, -2.0, 3.0], dtype=F64)
SVD = {"method": "thin SVD", "row_form": True}
EYE = Instance("identity image", lambda: ops.Identity((2, 4, 6)), lambda _: np.eye(48), "diagonal", True)
MATRIX, OTHER, MATRICES = dense("", WIDE), dense("", random(5, 12, seed=7)), dense("", random(ITEMS, 5, 12, seed=8))
LOW, ROWS = downsample(2, (2, 4, 6)), hadamard(20, (2, 4, 6))
SPECTRUM, MANY_BLURS = (
    fourier("", 9, (2, 4, 6)),
    blur("", KERNELS, (2, 4, 6), lambda: list(KERNELS.numpy()), per_item=True),
)
LEFT = torch.zeros(4, 6, dtype=torch.bool).index_fill_(1, torch.arange(3), True)
LEFT_MASK, RIGHT_MASK = mask("", LEFT, (2, 4, 6)), mask("", ~LEFT, (2, 4, 6))
HALVES = [mask("", random(ITEMS, 2, 4, 6).abs() * half, per_item=True) for half in (LEFT, ~LEFT)]
FUNCTION = linear("", lambda: ops.Linear(lambda x: x @ WIDE.T, None, 12, dtype=F64), WIDE)
SUMS = {"row_form": False, "exact_bounds": False}

ALGEBRA = [
    times("2 * dense", 2, MATRIX),
    times("dense times -0.3 tall", -0.3, dense("", TALL, row_form=False)),
    times("zero * dense", 0.0, MATRIX),
    times("per item * dense", FACTORS, MATRIX),
    times("per item * dense per item", FACTORS, MATRICES),
    times("per item * identity", FACTORS, EYE),
    times("3 * mask", 3, MASKED),
    times("per item * mask", FACTORS, MASKED),
    times("per item * mask per item", FACTORS, MANY_MASKS),
    times("-blur", -1, BLUR),
    times("per item * blur", FACTORS, SMOOTH),
    times("per item * blur per item", FACTORS, MANY_BLURS),
    times("per item * fourier", FACTORS, SPECTRUM),
    times("per item * downsample", FACTORS, LOW),
    times("0.1 * hadamard", 0.1, ROWS),
    times("per item * function", FACTORS, FUNCTION),
    times("per item * composition", FACTORS, MIX),
    added("dense + dense", MATRIX, OTHER, exact_bounds=True, **SVD),
    added("dense - dense per item", MATRIX, MATRICES, signs=[1, -1], exact_bounds=True, **SVD),
    added("identity - blur", EYE, SMOOTH, signs=[1, -1]),
    added("identity + small mask", EYE, times("", 0.2, MANY_MASKS)),
    added("blur + mask per item - identity", SMOOTH, MANY_MASKS, EYE, signs=[1, 1, -1]),
    added("fourier + real mask", SPECTRUM, MANY_MASKS),
    added("function + per item * dense", FUNCTION, times("", FACTORS, MATRIX)),
    transposed(MATRIX),
    transposed(dense("dense m>d", TALL, row_form=False)),
    transposed(dense("dense m=d", random(7, 7, seed=3))),
    transposed(dense("dense rank deficient", rank_deficient(6, 9, 3))),
    transposed(dense("dense per item", random(ITEMS, 4, 6), (2, 3))),
    transposed(BLUR),
    transposed(MANY_BLURS),
    transposed(LOW),
    transposed(ROWS),
    transposed(FUNCTION, method="conjugate gradient"),
    Instance(
        "scaled dense per item, transposed",
        lambda: (FACTORS * MATRICES.make()).T,
        lambda _: FACTORS.numpy()[:, None, None] * known(MATRICES).swapaxes(1, 2),
        "thin SVD",
    ),
    Instance(
        "composition, transposed", lambda: MIX.make().T, lambda _: known(MIX).swapaxes(-1, -2), exact_bounds=False
    ),
    Instance(
        "sum, transposed",
        lambda: (SMOOTH.make() - MANY_MASKS.make()).T,
        lambda _: (known(SMOOTH) - known(MANY_MASKS)).swapaxes(-1, -2),
        exact_bounds=False,
    ),
    stacked("stack of one mask", MASKED, method="diagonal", row_form=True),
    stacked("stack of overlapping masks", MANY_MASKS, times("", 0.3, LEFT_MASK), EYE, method="diagonal"),
    stacked("stack of halves", LEFT_MASK, times("", FACTORS, RIGHT_MASK), method="diagonal", row_form=True),
    stacked("stack of halves per item", *HALVES, method="diagonal", row_form=True),
    stacked("stack of blur, fourier, identity", MANY_BLURS, SPECTRUM, times("", FACTORS, EYE), method="FFT"),
    stacked("stack of dense", MATRIX, times("", -2, OTHER), **SVD),
    stacked("stack of dense per item", MATRIX, MATRICES, **SVD),
    stacked("stack of dense, tall", MATRIX, OTHER, MATRICES, method="thin SVD"),
    stacked("stack of hadamard and identity", ROWS, times("", FACTORS, EYE), method="orthogonal rows"),
    stacked(
        "stack of identity and dense",
        times("", 0.5, Instance("", lambda: ops.Identity(12), lambda _: np.eye(12))),
        MATRICES,
        method="thin SVD",
    ),
    stacked(
        "stack of function and identity", FUNCTION, Instance("", lambda: ops.Identity(12), lambda _: np.eye(12)), **SUMS
    ),
    stacked("stack of mask and blur", MANY_MASKS, SMOOTH, **SUMS),
    stacked("stack of downsample and hadamard", LOW, ROWS, **SUMS),
    stacked("stack of fourier and mask", SPECTRUM, MANY_MASKS, **SUMS),
    Instance(
        "2 * stack of mask and blur, transposed",
        lambda: (2 * ops.Stack(MANY_MASKS.make(), SMOOTH.make())).T,
        lambda _: 2 * np.concatenate([known(MANY_MASKS), np.stack([known(SMOOTH)] * ITEMS)], 1).swapaxes(1, 2),
        exact_bounds=False,
    ),
    stacked("stack of a stack and a sum", stacked("", LOW, ROWS), added("", EYE, SMOOTH), **SUMS),
    composed("stack after blur", stacked("", LOW, ROWS), SMOOTH),
]
INSTANCES += ALGEBRA

PER_ITEM = [i for i in INSTANCES if i.make().batch is not None]
every = pytest.mark.parametrize("instance", INSTANCES, ids=str)
every_per_item = pytest.mark.parametrize("instance", PER_ITEM, ids=str)


def signals(a, items=ITEMS, seed=11):
    return random(items, *a.signal_shape, seed=seed)


def measurements(a, items=ITEMS, seed=12):
    y = random(items, *a.measurement_shape, seed=seed)
    return torch.complex(y, random(*y.shape, seed=seed + 1)) if a.complex_measurements else y


def matrices(instance, a, items=ITEMS):
    """The reference matrix of each item, (items, m, d)."""
    matrix = instance.matrix(a)
    return matrix if matrix.ndim == 3 else np.broadcast_to(matrix, (items, *matrix.shape))


def flat(x):
    return x.detach().numpy().reshape(len(x), -1)
