"""Several solvers on one damaged image, in equal time slices, observed while they run."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from genprior import _batch
from genprior.app import images, registry
from genprior.app.damage import Damaged
from genprior.app.recipe import PATIENCE, Recipe
from genprior.app.snapshot import Lane, Phase, Snapshot
from genprior.app.turns import TurnLock
from genprior.loop.solve import solve
from genprior.loop.starts import candidates
from genprior.result import Result
from genprior.solvers import Adam
from genprior.stopping import MaxSteps, Seconds, View

POINTS = 160
"""Most points of a curve, about."""
_SLICE = 0.05
_IMAGES_PER_SECOND = 8
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Race:
    """Runs a recipe in the calling thread; other threads may read :attr:`snapshot` and call :meth:`stop` at any time.

    Every solver has its own thread. They take turns in the callback of ``solve``, while its clock is stopped, so each solver
    gets the same time and their curves grow together.
    """

    recipe: Recipe
    patience: float = math.inf
    """Wall-clock seconds after which the race is stopped."""
    results: dict[str, Result] = field(default_factory=dict)
    damaged: Damaged | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        lanes = tuple(Lane(name) for name in self.recipe.solvers)
        self._snapshot = Snapshot(0, Phase.WAITING, lanes)
        self._deadline = math.inf

    @property
    def snapshot(self) -> Snapshot:
        """The current state, an immutable value."""
        return self._snapshot

    @property
    def seconds(self) -> float:
        """Computing done so far, by all solvers."""
        return sum(lane.seconds for lane in self._snapshot.lanes)

    def stop(self) -> None:
        """Stop at the next step and keep the best result so far. A waiting race does not start."""
        self._stop.set()
        with self._lock:
            if self._snapshot.phase is Phase.WAITING:
                self._change(phase=Phase.STOPPED)

    def run(self) -> None:
        """Run to the end; never raises: errors are in the snapshot."""
        with self._lock:
            if self._snapshot.phase is not Phase.WAITING:
                return
            self._change(phase=Phase.RUNNING)
        self._deadline = time.monotonic() + self.patience
        try:
            self._race()
        except Exception as problem:
            message = _message(problem)
            with self._lock:
                self._change(phase=Phase.FAILED, message=message)
            return
        with self._lock:
            self._change(phase=Phase.STOPPED if self.stopping else Phase.DONE, message=self._why_stopped())

    @property
    def stopping(self) -> bool:
        """Whether the solvers are to end."""
        return self._stop.is_set() or time.monotonic() > self._deadline

    def _why_stopped(self) -> str:
        if self._stop.is_set() or not self.stopping:
            return ""
        return f"stopped because the server is busy: the race took more than {self.patience:g} seconds"

    def _race(self) -> None:
        with torch.no_grad():
            damaged = self.recipe.damaged()
        self.damaged = damaged
        with self._lock:
            self._change(seen=images.data_url(damaged.seen), note=damaged.note)
        _prepare(damaged)
        turns = TurnLock(len(self.recipe.solvers))
        threads = [
            threading.Thread(target=self._run_lane, args=(number, damaged, turns), daemon=True)
            for number in range(len(self.recipe.solvers))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_lane(self, number: int, damaged: Damaged, turns: TurnLock) -> None:
        with turns.run(number):
            if self.stopping:
                self._update(number, status="not started")
                return
            self._update(number, status="running")
            try:
                self._solve(number, damaged, turns)
            except Exception as problem:
                self._update(number, status="not possible", problem=_message(problem))

    def _solve(self, number: int, damaged: Damaged, turns: TurnLock) -> None:
        watcher = Watcher(self, damaged, number, turns)
        result = solve(
            damaged.problem,
            registry.SOLVERS[self.recipe.solvers[number]](),
            stop=Seconds(self.recipe.seconds),
            restarts=self.recipe.restarts,
            z0=candidates(damaged.problem, 1, self.recipe.restarts, self.recipe.seed),
            patience=PATIENCE,
            callbacks=[watcher],
            progress=False,
        )
        ending = watcher.ending(result)
        self.results[self.recipe.solvers[number]] = result
        self._update(number, **ending)

    def _update(self, number: int, **changes: object) -> None:
        """Publish a change of one lane."""
        with self._lock:
            lanes = list(self._snapshot.lanes)
            lanes[number] = replace(lanes[number], **changes)  # type: ignore[arg-type]
            self._change(lanes=tuple(lanes))

    def _change(self, **changes: object) -> None:
        self._snapshot = replace(self._snapshot, version=self._snapshot.version + 1, **changes)  # type: ignore[arg-type]


class Watcher:
    """Callback of ``solve``: records the best iterate, publishes it at intervals, and lets the other solvers run."""

    def __init__(self, race: Race, damaged: Damaged, number: int, turns: TurnLock) -> None:
        self._race, self._number, self._turns = race, number, turns
        self._truth, self._judge = race.recipe.truth, damaged.judge
        self._size = float(_batch.norm(self._truth)[0])
        self._spacing = race.recipe.seconds / POINTS
        self._best, self._image = math.inf, self._truth[:0]
        self._points: list[tuple[float, float, float]] = []
        self._turn, self._shown = 0.0, -math.inf

    def __call__(self, view: View) -> bool:
        """Record one step; True ends the run."""
        objective, row = view.state.objective.min(dim=0)
        if float(objective) < self._best or not len(self._image):
            self._best, self._image = float(objective), view.state.x[row][None].clone()
        if not self._points or view.seconds - self._points[-1][0] >= self._spacing:
            self._note(view.seconds, self._image, self._best)
        if view.seconds - self._turn >= _SLICE:
            self._publish(view)
            self._turns.pass_on(self._number)
            self._turn = view.seconds
        return self._race.stopping

    def ending(self, result: Result) -> dict[str, object]:
        """Final fields of the lane, from the result."""
        self._note(result.seconds, result.signal, float(result.objective[0]))
        return {
            "image": images.data_url(result.signal),
            "points": tuple(self._points),
            "steps": int(result.steps[0]),
            "passes": result.forwards + result.backwards,
            "status": result.status[0].name,
            "advice": result.advice[0],
            "plan": result.plan,
            "remark": self._judge(result.signal) if self._judge is not None else "",
        }

    def _note(self, seconds: float, image: Tensor, objective: float) -> None:
        distance = float(_batch.norm(image - self._truth)[0])
        error = distance / self._size if self._size else math.nan  # a black image has norm zero
        self._points.append((seconds, error, objective))

    def _publish(self, view: View) -> None:
        changes: dict[str, object] = {"points": tuple(self._points), "steps": view.step}
        changes["passes"] = view.forwards + view.backwards
        if time.monotonic() - self._shown >= 1 / _IMAGES_PER_SECOND:
            self._shown = time.monotonic()
            changes["image"] = images.data_url(self._image)
        self._race._update(self._number, **changes)


def _prepare(damaged: Damaged) -> None:
    """Run one step, so that shared work (such as factorising the operator) is not charged to the first solver."""
    solve(damaged.problem, Adam(), stop=MaxSteps(1), progress=False)


def _message(problem: Exception) -> str:
    """One sentence for the visitor; unexpected errors are logged with a traceback."""
    if not isinstance(problem, ValueError):
        _log.error("unexpected error in a race", exc_info=problem)
    return " ".join(str(problem).split()) or type(problem).__name__
