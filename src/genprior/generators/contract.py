"""The contract between the solvers and a user's generator."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from genprior import _validate
from genprior._blocks import Block
from genprior._renamed import renamed, warn_renamed
from genprior.generators.alias import contents_of, follow, frozen_alias, place_of, places_of
from genprior.generators.derivatives import MODULE, Evaluation, Linearised, OnlyGradients, jacobian, pushed
from genprior.generators.faster import quick_copy
from genprior.generators.joint import Joint, Part, WithParameters
from genprior.generators.latents import LatentDistribution, Normal
from genprior.generators.passes import OutOfTime, Passes, Remembered
from genprior.generators.pool import BLOCK, Pool, extended, most_samples
from genprior.generators.preconditioner import (
    IN_A_RUN,
    POINTS,
    PULLBACKS,
    Preconditioner,
    ScaledIdentity,
    affordable,
    completed,
    estimated,
)

_CHECK = "check latent_shape, and the module itself"


class Generator:
    """A generator ``G`` from latents ``(B, *latent_shape)`` to signals ``(B, *signal_shape)``.

    Parameters
    ----------
    module
        Any ``torch.nn.Module`` that maps a batch of latents to a batch of signals, each item on its own. It is used in
        eval mode and without parameter gradients, through an alias that shares its memory: the module itself, its
        mode, its gradients and its hooks stay unchanged.
    latent_shape, signal_shape
        Shapes of one item, without the batch axis.
    latent
        How latents are distributed: :class:`Normal`, :class:`TruncatedNormal` or :class:`Uniform`. Starts are drawn
        from it, and default steps are in units of its spread.
    signal_range
        ``(low, high)`` if the signals are known to lie there, for images and checks.
    preconditioner
        ``E[DG^T DG]``, ``(s, s)``, if it is known, as for bundled generators; estimated otherwise.
    device, dtype
        where latents live; by default as the module's parameters, or the CPU and float32 if it has none.

    ``forwards`` and ``backwards`` count the batched passes made through this object; those of a run are counted by its
    result. ``speedups``: what :meth:`faster` did; ``no_jacobian``: why the module has no Jacobian, once known.

    ``signal_blocks``: where the signal and the parameters stand in flat signals, see :meth:`with_parameters`; else None.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> G = gp.Generator(torch.nn.Linear(3, 8), latent_shape=(3,), signal_shape=(8,))
    >>> G(torch.zeros(2, 3)).shape
    torch.Size([2, 8])
    >>> G.forwards, G.backwards
    (1, 0)
    """

    def __init__(
        self,
        module: nn.Module,
        latent_shape: int | Sequence[int],
        signal_shape: int | Sequence[int],
        *,
        latent: LatentDistribution | None = None,
        signal_range: tuple[float, float] | None = None,
        preconditioner: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        law: LatentDistribution | None = None,
        metric: Tensor | None = None,
    ) -> None:
        latent = renamed("law", law, "latent", latent)
        preconditioner = renamed("metric", metric, "preconditioner", preconditioner)
        self.latent_shape = _validate.shape("latent_shape", latent_shape)
        self.signal_shape = _validate.shape("signal_shape", signal_shape)
        self.latent = _checked_distribution(latent)
        self.signal_range = _checked_range(signal_range)
        self.module = frozen_alias(module)
        self._source: nn.Module | None = module
        self._places = places_of(module)
        self._run: Callable[[Tensor], Tensor] = self.module
        found_device, found_dtype = place_of(self.module)
        self.device = found_device if device is None else torch.empty(0, device=device).device
        self.dtype = found_dtype if dtype is None else dtype
        if self.device.type == "meta":
            raise ValueError(
                "module is on the meta device, so it has no weights: move it with module.to_empty and load weights"
            )
        self.speedups: tuple[str, ...] = ()
        self.signal_blocks: tuple[Block, ...] | None = None
        self.passes = Passes()
        self._given = None if preconditioner is None else self._checked_preconditioner(preconditioner)
        self._given_for = "" if preconditioner is None else contents_of(self.module)
        self._known = Remembered()

    def __call__(self, z: Tensor) -> Tensor:
        """``G(z)``: one forward pass, differentiable with respect to ``z``."""
        self._check_latent(z)
        self._follow()
        begun = self.passes.begin()
        try:
            x = self._run(z)
        except Exception:
            with _user_code(z):
                raise
        self.passes.forward(len(z), begun)
        self._check_signal(x, len(z))
        return x

    @property
    def original(self) -> nn.Module:
        """The caller's module, for another generator that is made of it."""
        return self.module if self._source is None else self._source

    @property
    def forwards(self) -> int:
        """Batched forward passes that were made through this object."""
        return self.passes.forwards

    @property
    def backwards(self) -> int:
        """Batched backward passes that were made through this object."""
        return self.passes.backwards

    def counting(self, passes: Passes) -> Generator:
        """The same generator, whose passes are counted and limited by ``passes``.

        It keeps the module's present tensors: later replacements, as by ``p.data = ...``, have no effect.
        """
        self._follow()
        other = copy.copy(self)
        other.passes, other._source = passes, None
        return other

    def _follow(self) -> None:
        """Use the tensors that the caller's module has now, as after ``p.data = ...``."""
        if self._source is not None:
            follow(self.module, self._source, self._places)

    def _check_signal(self, x: object, count: int) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"the generator's module gave {type(x).__name__}, expected one tensor: wrap it and return the signal"
            )
        if x.dtype != self.dtype:
            raise TypeError(
                f"the generator's module gave {x.dtype}, but its parameters are {self.dtype}: switch autocast off, or "
                "convert inside the module"
            )
        if x.shape != (count, *self.signal_shape):
            raise ValueError(
                f"the generator's module gave shape {tuple(x.shape)} for {count} latents, expected "
                f"{(count, *self.signal_shape)}: correct signal_shape, or reshape inside the module"
            )

    def backward(self, z: Tensor, x: Tensor, v: Tensor, *, keep: bool = False) -> Tensor:
        """``DG(z)^T v`` for ``x = G(z)`` with its graph, which is kept if wanted: one backward pass."""
        if not x.requires_grad:
            raise ValueError("the generator's output does not depend on the latent: its module detaches or ignores z")
        self.passes.begin()
        (gradient,) = torch.autograd.grad(x, z, v, retain_graph=keep)
        self.passes.backwards += 1
        return gradient

    def faster(self, *, compile: bool = False) -> Generator:
        """The same generator on a copy of its module that computes the same in less time; ``speedups`` says how.

        BatchNorm layers are folded into the layers before them and convolutions get their channels last in memory, each
        only if the signals of a few latents stay equal. ``compile=True`` also hands the module to ``torch.compile``: the first
        passes then take many seconds and need a C++ compiler, so that it pays for long runs only. Later changes of
        the module's weights do not reach the copy.
        """
        module, speedups = quick_copy(self.module, self.sample_latent(4))
        other = self.with_module(module)
        if self._given is not None and self._given_for == contents_of(self.module):
            other._given, other._given_for = self._given, contents_of(other.module)
        if compile:
            other._run = torch.compile(other.module)
        other.speedups = (*speedups, "compiled") if compile else speedups
        return other

    def with_module(self, module: nn.Module) -> Generator:
        """Another module under the same contract: shapes, latent distribution, range; counts from zero."""
        other = copy.copy(self)
        other.module = other._run = frozen_alias(module)
        other._source, other._places = module, places_of(module)
        other.passes, other._known, other._given, other.speedups = Passes(), Remembered(), None, ()
        return other

    def with_parameters(self, **parameters: Part) -> Generator:
        """The generator whose latent has parameters beside z, such as those of a forward model that is not quite known.

        Each is given by its distribution, one number, or by a distribution and a shape. The latents are flat, with the
        distribution ``Joint(z=..., ...)``, and so are the signals: ``G(z)``, and behind it the parameters. The loss is a
        :class:`NonLinear` with ``forward(signals, *parameters)``; a term on the signal is one on ``G(z)`` alone; a result
        has ``G(z)`` as ``result.signal`` and the parameters by name in ``result.parameters``.

        Examples
        --------
        >>> import torch, genprior as gp
        >>> G = gp.Generator(torch.nn.Linear(3, 8), latent_shape=(3,), signal_shape=(8,))
        >>> H = G.with_parameters(gain=gp.Uniform(0.5, 2), shift=(gp.Normal(0.1), 2))
        >>> H.latent_shape, [tuple(block.shape) for block in H.latent.split(H.sample_latent(4)).values()]
        ((6,), [(4, 3), (4, 1), (4, 2)])
        """
        if "z" in parameters:
            raise ValueError("a parameter may not be named z, which is the latent of the generator: give another name")
        if not parameters:
            raise ValueError("with_parameters needs at least one parameter: G.with_parameters(width=gp.Uniform(1, 3))")
        latent = Joint(z=(self.latent, self.latent_shape), **parameters)
        module = WithParameters(self.original, latent)
        blocks = module.signal_blocks(self.signal_shape)
        other = Generator(module, latent.size, blocks[-1].end, latent=latent, device=self.device, dtype=self.dtype)
        other.signal_blocks = blocks
        return other

    def evaluate(self, z: Tensor, *, graph: bool = True) -> Evaluation:
        """``G(z)``, with its graph kept for one later backward pass if wanted."""
        return Evaluation(self, z, graph=graph)

    def jacobian(self, z: Tensor, image: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """``DG(z)`` as matrices ``(B, d, s)`` for signal size d and latent dimension s: s forward passes, which are counted.

        ``image`` is a linear map of signals ``(n, *signal_shape)`` to be applied to the columns: ``(B, m, s)``.
        """
        self._follow()
        self._check_latent(z)
        with self._remembering(), _user_code(z):
            matrix = jacobian(self.module, z, math.prod(self.signal_shape), image, self.passes.begin)
        self.passes.forwards += math.prod(self.latent_shape)
        return matrix

    def jvp(self, z: Tensor, tangents: Tensor) -> Tensor:
        """``DG(z) v`` for tangents ``(n, B, *latent_shape)``, as ``(n, B, *signal_shape)``: n forward passes in one."""
        self._follow()
        self._check_latent(z)
        self.passes.begin()
        with self._remembering(), _user_code(z):
            images = pushed(self.module, z, tangents)
        self.passes.forwards += len(tangents)
        return images

    @property
    def no_jacobian(self) -> str | None:
        """Why the module has no Jacobian; None where it has one, or none was asked for yet."""
        return self._known.no_jacobian

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember that this module has no Jacobian, once an attempt has shown it."""
        if self._known.no_jacobian is not None:
            raise OnlyGradients(self._known.no_jacobian)
        try:
            yield
        except OnlyGradients as problem:
            if problem.what == MODULE:  # not a function of its signals
                self._known.no_jacobian = problem.why
            raise

    def linearised(self, z: Tensor) -> Linearised:
        """The maps ``v -> DG(z) v`` and ``u -> DG(z)^T u``, without a matrix; one forward pass, and one for each use."""
        self._check_latent(z)
        return Linearised(self, z)

    def preconditioner(self) -> Preconditioner | ScaledIdentity:
        """``E[DG(z)^T DG(z)]`` over the latent distribution: how much latent directions change the signal.

        A matrix up to a latent dimension of 1024, above it a multiple of the identity with the same trace.
        The given one, if there is one; otherwise estimated and cached until the module's contents change: from 256 random
        vectors, in a run from 8, or fewer where its limits are tight. With it comes the variance of the signals, from the same
        32 or 4 latents. Within a run it is constant.
        """
        if self.passes.preconditioner is not None:
            return self.passes.preconditioner
        self._follow()
        contents = contents_of(self.module)
        found = self._estimated(contents)
        if self.passes.of_a_run:
            self.passes.preconditioner = found
        return found

    def _estimated(self, contents: str) -> Preconditioner | ScaledIdentity:
        """An estimate, remembered by its size; of one that was given only the variance is estimated."""
        known, passes = self._known, self.passes
        if known.contents != contents:
            known.preconditioners, known.contents = {}, contents
        given = self._given if self._given_for == contents else None
        size = IN_A_RUN if passes.of_a_run or given is not None else (POINTS, PULLBACKS)
        if size not in known.preconditioners:
            size = affordable(passes) if passes.of_a_run else size
            points, pullbacks = size if given is None else (size[0], 0)
            forwards, backwards = passes.counts()
            known.preconditioners[size] = (
                estimated(self, points, pullbacks) if given is None else completed(self, given, points)
            )
            if passes.of_a_run:  # counted in passes of its batches
                batches = math.ceil(points / passes.rows)
                passes.recount(forwards + batches, backwards + batches * pullbacks)
        return known.preconditioners[size]

    def pool(self, count: int, seed: int = 0, *, rows: int = 1) -> Pool:
        """Samples to choose starts from, at least ``count`` unless memory forbids: the first ones of every larger pool.

        They are kept until the module's contents or the seed change; drawing more of them counts as one forward pass for
        each ``rows``, the items of a batch. They are independent of what ``sample_latent`` draws, whatever the seeds.
        """
        _validate.whole("count", count)
        self._follow()
        count = min(-(-count // BLOCK) * BLOCK, most_samples(self))
        _validate.seed(seed)
        known, place = self._known, (contents_of(self.module), seed)
        pool = known.pool if known.pool_of == place else None
        if pool is None or len(pool) < count:
            forwards, begun = self.passes.forwards, 0 if pool is None else len(pool)
            pool = extended(self, pool, count, seed)
            self.passes.forwards = forwards + math.ceil((len(pool) - begun) / rows)
            known.pool, known.pool_of = pool, place
        return pool.first(count)

    def metric(self) -> Tensor:
        """The matrix of :meth:`preconditioner`, under its old name."""
        warn_renamed("Generator.metric()", "Generator.preconditioner().matrix")
        return self.preconditioner().matrix

    @property
    def law(self) -> LatentDistribution:
        """The latent distribution, under its old name."""
        warn_renamed("Generator.law", "Generator.latent")
        return self.latent

    @property
    def given_preconditioner(self) -> Tensor | None:
        """The matrix given with the generator, if there was one."""
        return self._given

    def forget(self) -> None:
        """Drop the estimated preconditioner and the pool: for benchmarks in which every run makes its own passes."""
        self._known.pool = None
        self.passes.preconditioner = None
        self._known.preconditioners = {}

    def sample_latent(self, count: int, seed: int = 0) -> Tensor:
        """Draw ``count`` latents, the same on every device; never the starts of a search, whatever its seed."""
        _validate.whole("count", count)
        return self.draw(count, _validate.seed(seed))

    def draw(self, count: int, random: torch.Generator) -> Tensor:
        """Draw ``count`` latents with the given CPU random generator."""
        return self.latent.sample(count, self.latent_shape, random).to(self.device, self.dtype)

    @property
    def spread(self) -> float:
        """The unit of length in the latent space, for default steps: the typical size of one entry of a latent."""
        return self.latent.spread_in(self.latent_shape)

    def _checked_preconditioner(self, matrix: Tensor) -> Tensor:
        size = math.prod(self.latent_shape)
        if matrix.shape != (size, size) or not bool(torch.isfinite(matrix).all()):
            raise ValueError(
                f"preconditioner must be {size} x {size} finite numbers for latents of dimension {size}, got shape "
                f"{tuple(matrix.shape)}: leave it out, and it is estimated"
            )
        return matrix.detach().to(self.device, self.dtype)

    def _check_latent(self, z: Tensor) -> None:
        if not isinstance(z, Tensor):
            raise TypeError(f"z must be a torch.Tensor, got {type(z).__name__}: use torch.as_tensor(...)")
        if z.shape[1:] != self.latent_shape or z.ndim != len(self.latent_shape) + 1 or z.shape[0] == 0:
            _validate.batch("z", z, self.latent_shape)
        if z.device != self.device or z.dtype != self.dtype:
            _validate.same_place("z", z, self.device, self.dtype, "the generator")

    def __repr__(self) -> str:
        return (
            f"Generator({type(self.module).__name__}, latent_shape={self.latent_shape}, "
            f"signal_shape={self.signal_shape}, latent={self.latent}, {self.dtype} on {self.device})"
        )


@contextmanager
def _user_code(z: Tensor) -> Iterator[None]:
    """Errors of user-supplied modules say that the module failed, on which input and in which line."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, OnlyGradients, OutOfTime):
        raise
    except Exception as problem:
        plain = type(problem) is RuntimeError
        name, where = ("", "") if plain else (f"{type(problem).__name__}: ", _line_of(problem))
        wants_more = isinstance(problem, TypeError) and "required positional argument" in str(problem)
        fix = "the module takes more than z: wrap it (docs/your-own.md, OfClass)" if wants_more else _CHECK
        raise ValueError(
            f"the generator's module failed on latents of shape {tuple(z.shape)} ({name}{problem}{where}): {fix}"
        ) from problem


def _line_of(problem: Exception) -> str:
    """The line of the user's code where it failed, if it failed there, not in torch or genprior."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith(ours)]
    return f", {Path(lines[-1].filename).name} line {lines[-1].lineno}" if lines else ""


def _checked_distribution(latent: LatentDistribution | None) -> LatentDistribution:
    if latent is not None and not isinstance(latent, LatentDistribution):
        raise TypeError(f"latent must be a latent distribution such as gp.Normal(), got {latent!r}")
    return Normal() if latent is None else latent


def _checked_range(signal_range: tuple[float, float] | None) -> tuple[float, float] | None:
    if signal_range is None:
        return None
    if not isinstance(signal_range, tuple | list) or len(signal_range) != 2:
        raise ValueError(f"signal_range must be two numbers (low, high), got {signal_range!r}")
    low, high = (_validate.number("signal_range", bound) for bound in signal_range)
    if not low < high:
        raise ValueError(f"signal_range must be (low, high) with low below high, got {signal_range}")
    return low, high
