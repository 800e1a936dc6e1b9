"""Random problems for the judge, each from its number alone: as our objects, and as what the judge knows of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

import genprior as gp
from tests.laws.judge.functions import NOTHING, Function, Logistic, Squares
from tests.laws.judge.oracle import Item, exact_copy
from tests.laws.operators import reference

SOLVERS: dict[str, Callable[[], gp.Solver]] = {
    "Auto": gp.Auto,
    "QuasiNewton": gp.QuasiNewton,
    "QuasiNewton refreshed": lambda: gp.QuasiNewton(refresh=3),
    "LevenbergMarquardt": gp.LevenbergMarquardt,
    "LBFGS": gp.LBFGS,
    "ADMM Spectral": lambda: gp.ADMM(z_step=gp.z_steps.Spectral()),
    "ADMM GaussNewton": lambda: gp.ADMM(z_step=gp.z_steps.GaussNewton()),
    "ADMM GaussNewton cg": lambda: gp.ADMM(z_step=gp.z_steps.GaussNewton(dense=False)),
    "ADMM Balanced": lambda: gp.ADMM(
        z_step=gp.z_steps.Adam(), w_step=gp.w_steps.Exact(), dual=gp.duals.Constant(), penalty=gp.penalties.Balanced()
    ),
    "ADMM Adaptive": lambda: gp.ADMM(
        z_step=gp.z_steps.Momentum(),
        w_step=gp.w_steps.Exact(),
        dual=gp.duals.Adaptive(),
        penalty=gp.penalties.Doubling(),
    ),
    "ExactADMM": gp.ExactADMM,
    "LinearizedADMM": gp.LinearizedADMM,
    "Adam": gp.Adam,
    "GradientDescent": gp.GradientDescent,
    "GradientDescent momentum": lambda: gp.GradientDescent(momentum=0.9),
    "ProjectedGradient": gp.ProjectedGradient,
}
Measured = tuple[gp.operators.Operator, np.ndarray]
STEPS = {"LevenbergMarquardt": 100, "ADMM GaussNewton": 40, "ADMM GaussNewton cg": 40} | dict.fromkeys(
    ("ADMM Spectral", "ADMM Balanced", "ADMM Adaptive", "ExactADMM", "LinearizedADMM"), 120
)
"""Steps that are plenty, where the usual 300 would take long."""
LOOSE = (1e-2, 1e-3, 1e-2, None)
"""Tolerances in turn, for methods that rarely come to an end otherwise; None: as drawn."""
ON_LATENT = ("-",) * 8 + ("squared", "squared", "ball", "box", "l1", "l2", "linf")
SMOOTH = (nn.ELU, nn.Tanh, nn.Softplus, nn.GELU, nn.Sigmoid)
KINKED = (nn.ReLU, lambda: nn.LeakyReLU(0.2))


@dataclass(frozen=True)
class Units:
    """What one unit of signal, operator and latent is; an objective of squares has that of their product squared."""

    signal: float = 1.0
    operator: float = 1.0
    latent: float = 1.0

    def __str__(self) -> str:
        return f"units {self.signal:g}/{self.operator:g}/{self.latent:g}"


@dataclass
class Draw:
    """Choices that depend on the number of the problem alone; what was chosen is noted in ``words``."""

    number: int
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng([2024, self.number])

    def one(self, *values):
        return values[self.random.integers(len(values))]

    def named(self, *values):
        self.words.append(str(value := self.one(*values)))
        return value

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape)


@dataclass(frozen=True)
class Case:
    """A problem, how it is to be solved, and what the judge knows of each of its items."""

    number: int
    problem: gp.Problem
    items: list[Item]
    options: dict
    words: str
    scale: float
    """Natural size of the objective."""
    units: Units

    def options_for(self, solver: str) -> dict:
        """The options of ``solve``: as drawn, with steps and perhaps a tolerance for this solver."""
        loose = LOOSE[self.number // len(SOLVERS) % len(LOOSE)] if "ADMM" in solver else None
        stop = gp.MaxSteps(STEPS.get(solver, 300))
        return self.options | {"stop": stop} | ({} if loose is None else {"tolerance": loose})


class Scaled(nn.Module):
    """``out * f(m(z / latent))``: a module in other units."""

    def __init__(self, module: nn.Module, last: Callable[[Tensor], Tensor], units: Units) -> None:
        super().__init__()
        self.module, self.last, self.units = module, last, units

    def forward(self, z: Tensor) -> Tensor:
        return self.units.signal * self.last(self.module(z / self.units.latent))


def generator(draw: Draw, units: Units) -> tuple[nn.Module, int, tuple[int, ...]]:
    """A module in float64, its latent dimension and the shape of its signals."""
    torch.manual_seed(draw.number)
    family = draw.named("mlp", "conv", "exp", "kinked", "saturating")
    latent = draw.one(1, 2, 3, 4, 6, 8)
    active = draw.one(*KINKED) if family == "kinked" or (family == "conv" and draw.chance(0.3)) else draw.one(*SMOOTH)
    if family == "conv" or draw.chance(0.1):
        channels = draw.one(1, 2)
        shape: tuple[int, ...] = (channels, 4, 4)
        layers = [nn.Linear(latent, 16), active(), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 4, 4, 2, 1)]
        layers += [active(), nn.Conv2d(4, channels, 3, padding=1)]
    else:
        hidden, shape = draw.one(4, 12, 24), (draw.one(4, 8, 12, 20),)
        layers = [nn.Linear(latent, hidden), active()]
        layers += [nn.Linear(hidden, hidden), active()] if draw.chance(0.4) else []
        layers += [nn.Linear(hidden, *shape)]
    module = nn.Sequential(*layers).double()
    gain = draw.one(3.0, 8.0) if family == "saturating" else draw.one(1.0, 1.5, 2.0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(gain)
    draw.words += [type(active()).__name__, f"{latent}->{shape}"]
    return _finished(draw, family, module, units), latent, shape


def _finished(draw: Draw, family: str, module: nn.Sequential, units: Units) -> nn.Module:
    """With its last function, in its units: by scaling the first and last layer where that is possible."""
    if family == "exp":
        rate = draw.named(1, 3, 6)
        return Scaled(module, lambda m: torch.exp(rate * m), units)
    if family == "saturating" or draw.chance(0.15):
        return Scaled(module, draw.one(torch.tanh, torch.sigmoid), units)
    with torch.no_grad():
        module[0].weight.div_(units.latent)
        module[-1].weight.mul_(units.signal)
        module[-1].bias.mul_(units.signal)
    return module


def operator(draw: Draw, shape: tuple[int, ...], unit: float, dtype: torch.dtype) -> Measured:
    """An operator, and its matrix from its definition; complex measurements as twice as many real ones."""
    images = ["blur", "blur", "downsample", "fourier"] if len(shape) == 3 else []
    kind = draw.named("gaussian", "dense", "mask", "weights", "ill", "hadamard", "identity", *images)
    if unit != 1 and kind not in ("gaussian", "dense", "weights", "ill", "blur"):  # which cannot be scaled
        kind = draw.named("dense", "weights", "ill")
    if kind in ("gaussian", "dense", "ill"):
        return _dense(draw, kind, shape, unit, dtype)
    return (_on_images if kind in images else _on_entries)(draw, kind, shape, unit, dtype)


def _dense(draw: Draw, kind: str, shape: tuple[int, ...], unit: float, dtype: torch.dtype) -> Measured:
    n = math.prod(shape)
    m = int(draw.random.integers(1, n + 1))
    if kind == "gaussian" and unit == 1:
        made = gp.operators.Gaussian(m, shape, seed=draw.number, dtype=dtype)
        return made, made.matrix.double().numpy()
    if kind == "ill":
        turn = np.linalg.qr(draw.normal(n, n))[0]
        array = draw.normal(m, n) * np.logspace(0, -draw.one(2, 4, 6), n) @ turn
    else:
        m = draw.one(m, n + 3)
        array = draw.normal(m, n) / math.sqrt(m)
    matrix = torch.tensor(unit * array).to(dtype)
    return gp.operators.Dense(matrix, shape), matrix.double().numpy()


def _on_entries(draw: Draw, kind: str, shape: tuple[int, ...], unit: float, dtype: torch.dtype) -> Measured:
    n = math.prod(shape)
    if kind == "identity":
        return gp.operators.Identity(shape), np.eye(n)
    if kind == "hadamard":
        made = gp.operators.SubsampledHadamard(
            int(draw.random.integers(1, n + 1)), shape, seed=draw.number, dtype=dtype
        )
        return made, reference.hadamard(made)
    array = draw.random.random(shape)
    array = np.where(array < 0.6, 1.0, 0.0) if kind == "mask" else array
    array.reshape(-1)[0] = 1
    weights = torch.tensor(unit * array).to(dtype)
    return gp.operators.Mask(weights, shape, dtype=dtype), np.diag(weights.double().numpy().ravel())


def _on_images(draw: Draw, kind: str, shape: tuple[int, ...], unit: float, dtype: torch.dtype) -> Measured:
    if kind == "downsample":
        return gp.operators.Downsample(2, shape), reference.channels(reference.averaging(2, shape[-2:]), shape)
    if kind == "blur":
        kernel = torch.tensor(unit * np.abs(draw.normal(3, 3)) / 9).to(dtype)
        plane = reference.convolution(kernel.double().numpy(), shape[-2:])
        return gp.operators.Blur(kernel, shape, dtype=dtype), reference.channels(plane, shape)
    chosen = draw.random.random(shape[-2:]) < 0.5
    chosen[0, 0] = True
    plane = reference.channels(reference.fourier(chosen), shape)
    made = gp.operators.SubsampledFourier(torch.tensor(chosen), shape, dtype=dtype)
    return made, np.concatenate([plane.real, plane.imag])


def loss_of(draw: Draw, x: np.ndarray, shape: tuple[int, ...], units: Units, dtype: torch.dtype):
    """Our loss, the judge's for each item, and the unit of the objective."""
    kind = draw.named("squares", "squares", "squares", "distance", "distance", "risk", "none")
    items, n = len(x), math.prod(shape)
    noise = draw.one(0, 0, 0.01, 0.3, 2.0)
    draw.words.append(f"noise {noise}")
    if kind == "squares":
        made, matrix = operator(draw, shape, units.operator, dtype)
        clean = x @ matrix.T
        y = clean + noise * clean.std() * draw.normal(*clean.shape) * (np.abs(matrix).sum(axis=1) > 0)
        y = torch.tensor(y).to(dtype)
        ours = torch.complex(*y.chunk(2, dim=1)) if made.complex_measurements else y
        judged = [Squares(matrix, row) for row in y.double().numpy()]
        unit = (units.signal * units.operator) ** 2
        return gp.LeastSquares(made, ours.reshape(items, *made.measurement_shape)), judged, unit
    y = torch.tensor(x + noise * x.std() * draw.normal(items, n)).to(dtype)
    if kind == "distance":
        weight = draw.one(0.01, 1.0, 1.0, 100.0)
        judged = [Squares(np.eye(n), row, weight) for row in y.double().numpy()]
        return gp.SquaredDistance(y.reshape(items, *shape), weight), judged, units.signal**2
    if kind == "risk":
        inputs = draw.normal(30, n) / units.signal / math.sqrt(n)
        labels = np.sign(inputs @ x[0] + draw.one(0.1, 1.0) * np.abs(inputs @ x[0]).mean() * draw.normal(30))
        signed = torch.tensor(labels[:, None] * inputs).to(dtype)
        return gp.EmpiricalRisk(_logistic, signed), [Logistic(signed.double().numpy())] * items, 1.0
    return None, [None] * items, units.signal**2


def _logistic(w: Tensor, signed: Tensor) -> Tensor:
    margins = -(w.flatten(1) @ signed.T)
    return torch.logaddexp(margins, torch.zeros_like(margins))  # softplus gives up digits above 20


def term(draw: Draw, kinds: tuple[str, ...], v: np.ndarray, shape: tuple[int, ...], unit: float, dtype: torch.dtype):
    """Our term and the judge's for each item, around points near ``v``; ``unit`` is that of the objective."""
    kind = draw.named(*kinds)
    if kind == "-":
        return None, [NOTHING] * len(v)
    typical = float(np.abs(v).mean()) + 1e-300
    spread = float(np.linalg.norm(v, axis=1).mean()) + 1e-300
    factor = draw.one(1e-3, 0.03, 0.3) * unit / typical ** (2 if kind == "squared" else 1)
    centre = None
    low, high = -typical * draw.one(0.5, 1.0, 3.0), typical * draw.one(0.5, 1.0, 3.0)
    if draw.chance(0.5) or kind in ("l2", "linf", "ball", "l1ball"):
        centre = torch.tensor(v + 0.1 * typical * draw.normal(*v.shape)).to(dtype)
        draw.words.append("around")
        low, high = low / 5, high / 5
    if kind in ("ball", "l1ball"):
        high = spread * draw.one(0.05, 0.3, 1.0) * (math.sqrt(v.shape[1]) if kind == "l1ball" else 1)
    ours = {
        "l1": lambda: factor * gp.L1(),
        "l2": lambda: factor * gp.L2(),
        "linf": lambda: factor * gp.LInf(),
        "squared": lambda: factor * gp.SquaredL2(),
        "tv": lambda: factor * gp.TotalVariation(tolerance=1e-8),
        "box": lambda: gp.Box(low, high),
        "ball": lambda: gp.Ball(high),
        "l1ball": lambda: gp.L1Ball(high),
    }[kind]()
    if centre is None:
        return ours, [Function(kind, factor, 0.0, low, high, shape)] * len(v)
    ours = ours.around(centre.reshape(-1, *shape))
    return ours, [Function(kind, factor, row, low, high, shape) for row in centre.double().numpy()]


def case(number: int) -> Case:
    """The problem with this number."""
    draw = Draw(number)
    dtype = draw.one(torch.float32, torch.float64)
    units = _units(draw, dtype)
    draw.words += [str(dtype)[6:], str(units)]
    module, latent, shape = generator(draw, units)
    module = module.to(dtype)
    exact = exact_copy(module)
    truth = units.latent * draw.one(1, 1, 2) * draw.normal(draw.one(1, 2, 3, 5), latent)
    x = exact(torch.tensor(truth)).flatten(1).numpy()
    loss, losses, unit = loss_of(draw, x, shape, units, dtype)
    scale = unit if isinstance(loss, gp.EmpiricalRisk) else unit * (np.abs(x).mean() / units.signal) ** 2
    on_signal, signals = term(draw, _signal_terms(loss, shape), x, shape, scale, dtype)
    on_latent, latents = term(draw, ON_LATENT, truth, (latent,), scale, dtype)
    made = gp.Generator(module, latent, shape, latent=gp.Normal(units.latent))
    parts = [Item(module, exact, (latent,), *each) for each in zip(losses, signals, latents, strict=True)]
    problem = gp.Problem(made, loss, on_signal, on_latent)
    options = _options(draw, truth, units, dtype)
    return Case(number, problem, parts, options, " ".join(draw.words), scale, units)


def _signal_terms(loss: gp.losses.Loss | None, shape: tuple[int, ...]) -> tuple[str, ...]:
    """None in half of the problems; without a loss only what is not zero on a set."""
    if loss is None:
        return "l1", "l2", "linf", "squared"
    terms = ("l1", "l2", "linf", "squared", "box", "ball", "l1ball", *(("tv",) if len(shape) == 3 else ()))
    return ("-",) * len(terms) + terms


def _units(draw: Draw, dtype: torch.dtype) -> Units:
    """Half of the problems in other units: of signal and data, of the operator, of both, of the latent."""
    if draw.chance(0.5):
        return Units()
    unit, other = (10.0 ** draw.one(-12, -11, -9, -6, -3, 3, 6, 9, 12) for _ in range(2))
    if dtype == torch.float32 and not 1e-12 <= unit * other <= 1e12:
        other = 1 / other  # else the squares cannot be represented
    return draw.one(Units(signal=unit), Units(operator=unit), Units(signal=unit, operator=other), Units(latent=unit))


def _options(draw: Draw, truth: np.ndarray, units: Units, dtype: torch.dtype) -> dict:
    start = draw.named("drawn", "drawn", "drawn", "warm", "near", "far")
    options: dict = {"check_every": draw.one(1, 10), "seed": draw.number + 1}
    tolerance = draw.one(None, None, 1e-6, 1e-4, 1e-4, 1e-3)
    if tolerance is not None:
        options["tolerance"] = tolerance
    if start == "drawn":
        options["restarts"] = draw.one(1, 1, 1, 3)
    else:
        away = {"warm": 0.0, "near": 1e-3, "far": 10.0}[start]
        options["z0"] = torch.tensor(truth + away * units.latent * draw.normal(*truth.shape)).to(dtype)
    draw.words.append(f"tolerance {tolerance} check {options['check_every']}")
    return options
