"""Laws of a solver."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genprior import _tree
from genprior.generators import Evaluation, Generator
from genprior.loop.checkpoint import Checkpoint
from genprior.loop.solve import solve
from genprior.losses import LeastSquares
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers import Choice, State
from genprior.status import Status
from genprior.stopping import MaxSteps
from genprior.terms import Ball
from genprior.testing.known import KnownOptimum, nonsmooth_problems, smooth_problems
from genprior.testing.laws import Laws, random, require, require_close, require_same_bits

Make = Callable[[], Choice]
Known = Callable[[], KnownOptimum]

_CLOSE = 1e-6
"""Residuals below which a solver claims to have converged."""
_FEW = 12
"""Steps of runs that are compared with each other: near an optimum, rounding decides about trials."""


class SolverLaws(Laws[Choice]):
    """Pure steps on typed states with one row per item, right optima, counted passes, honest verdicts, exact resumption.

    The attributes below say what the method promises; the laws hold it to that.
    """

    steps: int = 3000
    """Enough to reach the optimum of every problem."""
    exact: bool = True
    """Whether the method ends at the optimum; False for one that ends in a small neighbourhood."""
    splits: bool = False
    """Whether it takes the prox of R, and so finds optima at kinks; others go part of the way by subgradients."""
    passes: tuple[int, int] | None = (1, 1)
    """Forward and backward passes per iteration; None: they vary."""
    rounding_decides: bool = False
    """Whether rounding may decide about the order of its steps, so that items alone need a different number of them."""

    def smooth(self) -> Mapping[str, Known]:
        """Problems with a known optimum and no kink in R."""
        return smooth_problems()

    def nonsmooth(self) -> Mapping[str, Known]:
        """Problems with a kinked R; empty for a method that refuses them."""
        return nonsmooth_problems()

    def tables(self) -> dict[str, Mapping[str, object]]:
        """Solvers, and problems: all, a few for laws about steps, those with and without kinks in R."""
        smooth, kinked = self.smooth(), self.nonsmooth()
        few = dict(list(smooth.items())[::3] + list(kinked.items())[-1:])
        return {
            **super().tables(),
            "known": {**smooth, **kinked},
            "known_few": few,
            "known_smooth": smooth,
            "known_nonsmooth": kinked,
        }

    # -- data, state, step -------------------------------------------------------------------------------------------

    def test_it_is_frozen_data(self, make: Make) -> None:
        """A frozen dataclass: equal settings are equal solvers, and checkpoints know them again."""
        one, other = make(), make()
        frozen = dataclasses.is_dataclass(one) and type(one).__dataclass_params__.frozen
        require(bool(frozen), "a solver is a frozen dataclass", f"{type(one).__name__}: write @dataclass(frozen=True)")
        require(one == other and hash(one) == hash(other), "equal settings are equal solvers", f"{one!r}, {other!r}")

    def test_a_step_is_pure(self, make: Make, known_few: Known) -> None:
        """The same state stepped twice gives the same bits; it is left alone; names, shapes and dtypes stay."""
        problem = known_few().problem
        for state, step in _course(make(), known_few(), 7):
            before = {name: leaf.clone() for name, leaf in named(state).items()}
            once = step(problem, state)
            require_same_bits("the step leaves its state alone", before, named(state))
            require_same_bits("the same state gives the same bits", named(once), named(step(problem, state)))
            old, new = _forms(state), _forms(once)
            changed = [name for name in old if old[name] != new.get(name)]
            shown = ", ".join(f"{n}: {old[n]} became {new.get(n)}" for n in changed[:3])
            require(old == new, "a step keeps names, shapes and dtypes", shown or f"{sorted(new.keys() ^ old.keys())}")

    def test_a_state_has_one_row_per_item(self, make: Make, known_few: Known) -> None:
        """Every tensor in it, so that items can be selected, replaced and stored."""
        items = len(known_few().optimum)
        for state, _ in _course(make(), known_few(), 3):
            wrong = {n: tuple(t.shape) for n, t in named(state).items() if t.ndim == 0 or len(t) != items}
            require(not wrong, f"every tensor of a state has {items} rows, one per item", f"{wrong}")

    def test_a_step_of_one_item_is_that_of_the_batch(self, make: Make, known_few: Known) -> None:
        """Selected rows of a state, stepped alone, are the rows of the stepped batch."""
        problem = known_few().problem
        for state, step in _course(make(), known_few(), 4):
            whole = step(problem, state)
            for item in range(len(state.z)):
                index = torch.tensor([item])
                alone = step(problem.rows(index), _tree.take(state, index))
                for name in ("z", "w", "objective"):
                    ours, theirs = getattr(alone, name), getattr(whole, name)[index]
                    require_close(f"{name} of item {item}, stepped alone", ours, theirs, 1e-6, 1e-9)

    # -- where it ends, and what it says about it ----------------------------------------------------------------------

    def test_it_reaches_the_optimum_and_says_so(self, make: Make, known_smooth: Known) -> None:
        """The objective is the known optimum, the latents are feasible, and the status is CONVERGED."""
        certified = known_smooth()
        steps = self.steps if self.exact else min(self.steps, 1000)
        result = _solved(make(), certified, steps, tolerance=1e-7)
        accuracy = (1e-6, 1e-8) if self.exact else (1e-3, 1e-4)
        require_close(f"the optimum after {steps} steps", result.objective, certified.optimum, *accuracy)
        near = (result.stationarity < 1e-2) & (result.gap < 1e-2)
        measured = f"stationarity {result.stationarity.tolist()}, gap {result.gap.tolist()}"
        require(bool(near.all()), "at the optimum stationarity and gap are below 1%", measured)
        if self.exact:
            numbers = f"{[s.name for s in result.status]}, stationarity {result.stationarity.tolist()}"
            require(result.converged, "it says that it has converged, for it has", f"{numbers}: see residuals()")

    def test_it_handles_kinks(self, make: Make, known_nonsmooth: Known) -> None:
        """A method that splits finds the optimum; another one comes nearer to it by three quarters."""
        certified = known_nonsmooth()
        result = _solved(make(), certified, min(self.steps, 2000 if self.splits else 500), tolerance=1e-6)
        above = result.objective - certified.optimum
        start = certified.problem.objective(certified.starts) - certified.optimum
        numbers = f"{above.tolist()} above it after {result.steps.tolist()} steps, {start.tolist()} at the start"
        require(bool((above >= -1e-6 * (1 + certified.optimum.abs())).all()), "nothing lies below the optimum", numbers)
        allowed = 2e-3 * certified.optimum.abs() + 1e-6 if self.splits else 0.25 * start
        require(bool((above <= allowed).all()), f"the objective is within {allowed.tolist()} of the optimum", numbers)
        if self.splits:
            require(bool((result.gap < 3e-2).all()), "w and G(z) have met", f"gap {result.gap.tolist()}")

    def test_residuals_claim_no_optimum_far_from_one(self, make: Make, known_few: Known) -> None:
        """Wherever gap and stationarity are both below 1e-6, the objective is at the optimum."""
        certified = known_few()
        solver = make().solver(certified.problem)
        start = certified.problem.objective(certified.starts) - certified.optimum
        for k, (state, _) in enumerate(_course(solver, certified, 25)):
            gap, stationarity = solver.residuals(certified.problem, state)
            law = "residuals() gives two numbers per item, not below 0 and not NaN"
            for values in (gap, stationarity):
                right = values.shape == certified.optimum.shape and bool((values >= 0).all())
                require(right, law, f"{values.tolist()} after {k} steps")
            claims = (gap < _CLOSE) & (stationarity < _CLOSE)
            above = state.objective - certified.optimum
            numbers = (
                f"after {k} steps gap {gap.tolist()}, stationarity {stationarity.tolist()}, but {above.tolist()} above"
            )
            require(not bool((claims & (above > 1e-2 * start)).any()), "no optimum is claimed far from one", numbers)

    def test_the_status_is_honest(self, make: Make, known_few: Known) -> None:
        """After any number of steps, an item that is CONVERGED is at the optimum."""
        certified = known_few()
        start = certified.problem.objective(certified.starts) - certified.optimum
        for steps in (1, 5, 30):
            result = solve(certified.problem, make(), stop=MaxSteps(steps), z0=certified.starts, check_every=1)
            said = torch.tensor([status is Status.CONVERGED for status in result.status])
            above = result.objective - certified.optimum
            numbers = (
                f"{above.tolist()} above it after {result.steps.tolist()} steps, {[s.name for s in result.status]}"
            )
            require(not bool((said & (above > 1e-4 * start)).any()), "CONVERGED means at the optimum", numbers)

    def test_no_steps_return_the_start(self, make: Make, known_few: Known) -> None:
        """``start`` is at z0, and claims nothing."""
        certified = known_few()
        result = _solved(make(), certified, 0)
        start = certified.problem.on_latent.prox(certified.starts, 0.0)  # in the domain of H, where that is a set
        require_close("z after 0 steps", result.z, start, 0.0, 0.0)
        expected = certified.problem.generator(start).detach()
        require_close("the signal after 0 steps", result.signal, expected, 0.0, 0.0)
        require(set(result.status) == {Status.MAX_STEPS}, "nothing is claimed after 0 steps", f"{result.status}")

    # -- runs --------------------------------------------------------------------------------------------------------

    def test_a_batch_equals_single_runs(self, make: Make, known: Known) -> None:
        """Twelve steps of each item alone end where those of the batch do."""
        certified = known()
        together = _solved(make(), certified, _FEW)
        for item in range(len(certified.optimum)):
            index = torch.tensor([item])
            part = certified.problem.rows(index)
            alone = _solved(make(), KnownOptimum(part, certified.optimum[index]), _FEW, z0=certified.starts[index])
            for name in ("signal", "z", "w", "objective", "gap", "stationarity"):
                ours, theirs = getattr(alone, name), getattr(together, name)[index]
                require_close(f"{name} of item {item} alone", ours, theirs, 1e-6, 1e-7)
            if not self.rounding_decides:
                one, other = (alone.status[0], int(alone.steps)), (together.status[item], int(together.steps[item]))
                require(one == other, f"status and steps of item {item} alone", f"{one}, in the batch {other}")

    def test_passes_are_those_declared_and_counted(self, make: Make, known_few: Known) -> None:
        """Hooks on the module see as many passes at every step as ``passes`` declares, and as many in a run as it counts."""
        if self.passes is None:
            return
        certified = known_few()
        counted, seen = _hooked(certified.problem)
        for step, _ in enumerate(_course(make(), KnownOptimum(counted, certified.optimum), 10)):
            found, expected = tuple(seen.values()), self.passes if step else (1, 0)
            name = f"step {step}" if step else "start"
            require(found == expected, f"{expected} forward and backward passes in {name}", f"measured {found}")
            seen.update(forward=0, backward=0)
        seen.update(forward=0, backward=0)
        result = solve(counted, make(), stop=MaxSteps(10), z0=certified.starts)
        told, truly = (result.forwards, result.backwards), tuple(seen.values())
        require(told == truly, "the result counts the passes of the module", f"{told}, hooks saw {truly}")

    def test_resumed_runs_have_the_same_bits(self, make: Make, known_few: Known) -> None:
        """Stopped after 7 steps and taken up from a checkpoint, a run ends as one that was never stopped."""
        certified = known_few()

        def run(path: Path | None, stop_at: int | None = None) -> Result:
            stored = None if path is None else Checkpoint(path, steps=3)
            calls = [] if stop_at is None else [lambda view: view.step == stop_at]
            options: dict[str, Any] = {"checkpoint": stored, "callbacks": calls, "tolerance": 1e-12}
            return solve(certified.problem, make(), stop=MaxSteps(20), z0=certified.starts, **options)

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.safetensors"
            run(path, 7)
            resumed, whole = run(path), run(None)
        fields = ("signal", "z", "w", "objective", "gap", "stationarity", "steps")
        require_same_bits(
            "a resumed run ends with the same bits",
            {name: getattr(whole, name) for name in fields},
            {name: getattr(resumed, name) for name in fields},
        )

    def test_float32_maps_and_a_network(self, make: Make) -> None:
        """On a small network with latents of two axes, in float32, within a ball: the objective falls by nine tenths."""
        problem = _network_problem()
        G = problem.generator
        result = solve(problem, make(), stop=MaxSteps(300), seed=2)
        start = problem.objective(G.sample_latent(4, seed=2))
        numbers = f"{start.tolist()} to {result.objective.tolist()}"
        require(
            bool((result.objective < 0.1 * start).all()), "the objective falls by nine tenths in 300 steps", numbers
        )
        kept = result.signal.dtype == torch.float32 and result.z.shape == (4, *G.latent_shape)
        require(kept, "dtype and shape are the generator's", f"{result.signal.dtype}, {tuple(result.z.shape)}")
        radius = result.z.flatten(1).norm(dim=1)
        require(bool((radius <= 6.0 * (1 + 1e-5)).all()), "H holds: |z| <= 6", f"{radius.tolist()}")


def named(tree: object, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a state by the path of their fields."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if isinstance(tree, Evaluation):
        return {f"{prefix}.z": tree.z, f"{prefix}.x": tree.x}
    if tree is None:
        return {}
    if isinstance(tree, dict):
        parts = tree
    elif dataclasses.is_dataclass(tree):
        parts = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    else:
        raise AssertionError(
            f"a state is made of tensors, frozen dataclasses, dictionaries and None: {prefix} is a {type(tree).__name__}"
        )
    found: dict[str, Tensor] = {}
    for name, part in parts.items():
        found |= named(part, f"{prefix}.{name}" if prefix else str(name))
    return found


def _forms(state: object) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in named(state).items()}


Step = Callable[[Problem, State], State]


def _course(choice: Choice, certified: KnownOptimum, steps: int) -> Iterator[tuple[State, Step]]:
    """The states of a run without the loop, the start first, each with the step that leads on."""
    solver = choice.solver(certified.problem)
    with torch.no_grad():
        state = solver.start(certified.problem, certified.starts)
        for _ in range(steps):
            yield state, solver.step
            state = solver.step(certified.problem, state)


def _solved(choice: Choice, certified: KnownOptimum, steps: int, **options: Any) -> Result:
    settings = {"tolerance": 1e-8, "patience": 10_000, **options}
    settings.setdefault("z0", certified.starts)
    return solve(certified.problem, choice, stop=MaxSteps(steps), **settings)


def _hooked(problem: Problem) -> tuple[Problem, dict[str, int]]:
    """The same problem with a module that notes its passes."""
    seen = {"forward": 0, "backward": 0}

    def forward(*_: object) -> None:
        seen["forward"] += 1

    def backward(*_: object) -> None:
        seen["backward"] += 1

    G = problem.generator
    module = nn.Sequential(G.module, nn.Identity())
    counted = Generator(module, G.latent_shape, G.signal_shape, preconditioner=G.preconditioner().matrix)
    counted.preconditioner()  # known from here on
    module.register_forward_hook(forward)
    module[1].register_full_backward_hook(backward)
    return Problem(counted, problem.loss, problem.on_signal, problem.on_latent), seen


def _network_problem() -> Problem:
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 12), nn.ELU(), nn.Linear(12, 32), nn.Unflatten(1, (2, 4, 4)))
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(0.4 * random(*parameter.shape, seed=20 + seed))
    G = Generator(module, (2, 2, 2), (2, 4, 4))
    A = Gaussian(24, G.signal_shape)
    y = A(G(G.sample_latent(4, seed=1)).detach())
    return Problem(G, LeastSquares(A, y), on_latent=Ball(6.0))
