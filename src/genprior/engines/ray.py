"""A Ray cluster: one actor for each worker. Ray is imported when it is used: ``pip install genprior[ray]``."""

from __future__ import annotations

import math
import os
import pickle
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from genprior import _validate
from genprior.engines.base import Answer, Answers, Batches, Engine, EngineError, Task
from genprior.engines.dispatch import Patience, dispatch
from genprior.engines.local import enough
from genprior.engines.pool import Answered, Event, Failed, Gone, Pool, Ready
from genprior.engines.worker import Head, arrived, dumps, open_work, packed, portable, versions

_ANSWERS_WITHIN = 10.0
"""Seconds in which a cluster's address must take a connection, and answer."""
_FRAME, _SETTINGS = 9, b"\x04"
"""Bytes of the head of a frame in HTTP/2, and the type of settings in it."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)


@dataclass(frozen=True)
class Ray(Engine):
    """Workers on a Ray cluster.

    A job fails over by itself: when a worker or its machine is lost, its batch goes to another one.
    """

    address: str = "auto"
    """``auto``: the cluster that ``RAY_ADDRESS`` names, or the one that was started on this machine; ``local``: a cluster
    on this machine alone, for this job; ``host:6379``: a cluster that this machine belongs to; ``ray://host:10001``: one
    that it does not belong to. A connection that the caller has made with ``ray.init`` is used, and left open."""
    workers: int | None = None
    """As many as fit, where this is not given; give it, or a ``batch_size``, to ``gp.solve``, which else makes one batch."""
    cpus_per_worker: float = 1
    """Processors that each worker reserves."""
    gpus_per_worker: float = 0
    """0.25: four workers share a graphics card."""
    threads: int | None = None
    """Of each worker; by default as many as it reserves processors."""
    batch_seconds: float | None = None
    """A worker that needs longer for a batch is stopped, and the batch is repeated; see :class:`Local`."""
    start_seconds: float = 300.0
    """How long to wait for the first worker, when the cluster is full."""

    def __post_init__(self) -> None:
        if self.workers is not None:
            _validate.whole("workers", self.workers)
        _validate.number("cpus_per_worker", self.cpus_per_worker, above=0)
        _validate.number("gpus_per_worker", self.gpus_per_worker, least=0)
        if self.threads is not None:
            _validate.whole("threads", self.threads)
        _validate.number("start_seconds", self.start_seconds, above=0)
        if self.batch_seconds is not None:
            _validate.number("batch_seconds", self.batch_seconds, above=0)

    @property
    def size(self) -> int:
        """The number of workers asked for; 1 where that is left to the cluster."""
        return self.workers or 1

    @property
    def here(self) -> bool:
        """No: machines of a cluster see what is on disks that they share."""
        return False

    def run(self, batches: Batches[Task, Answer]) -> Answers[Answer]:
        """In the order in which they are done."""
        work = packed(batches.work)
        pool = _Actors(self, work)
        count = enough(pool.fitting, batches)
        patience = Patience(batch_seconds=self.batch_seconds, start_seconds=self.start_seconds)
        return dispatch(pool, batches, count, patience)


class _Worker:
    """The actor: opens the work when it is made, solves one batch at a time."""

    def __init__(self, head: Head, work: bytes) -> None:
        self._solve: Any = None
        self._error: bytes | None = None
        try:
            self._solve = open_work(head, work)
        except BaseException as error:
            self._error = portable(error)

    def opened(self) -> bytes | None:
        """None, or the exception."""
        return self._error

    def solve(self, task: bytes) -> tuple[bool, bytes]:
        """Whether it succeeded; the answer or the exception."""
        try:
            return True, dumps(self._solve(pickle.loads(task)))
        except BaseException as error:
            return False, portable(error)


class _Actors(Pool):
    """Actors without restarts: the driver starts another one, where there is room for it."""

    def __init__(self, engine: Ray, work: bytes) -> None:
        self._ray = _imported(engine.address)
        self._ours = _connect(self._ray, engine.address)
        try:
            self._begin(engine, work)
        except BaseException:
            self.close()
            raise

    def _begin(self, engine: Ray, work: bytes) -> None:
        ray = self._ray
        room = _room(ray, engine)
        if not room:
            raise EngineError(
                f"no machine of the Ray cluster has both {engine.cpus_per_worker:g} processors and "
                f"{engine.gpus_per_worker:g} graphics cards: ask for less with cpus_per_worker and gpus_per_worker"
            )
        self.fitting = min(room, engine.workers or room)
        if engine.workers is not None and room < engine.workers:
            self.notes = (f"{engine.workers} workers were asked for, {room} fit into the Ray cluster",)
        self.name = f"{self.fitting} worker{'s' if self.fitting > 1 else ''} on Ray"
        self._head = Head(versions(), engine.threads or max(1, int(engine.cpus_per_worker)), visible=False)
        self._actor = ray.remote(
            num_cpus=engine.cpus_per_worker, num_gpus=engine.gpus_per_worker, max_restarts=0, max_task_retries=0
        )(_Worker)
        self._work = self._stored(work)
        self._workers: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        """References to what workers are doing."""
        self._opening: set[Any] = set()

    def start(self, worker: int) -> None:
        actor = self._actor.remote(self._head, self._work)
        self._workers[worker] = actor
        reference = actor.opened.remote()
        self._opening.add(reference)
        self._pending[reference] = worker

    def send(self, worker: int, task: object) -> None:
        content = self._stored(dumps(task))
        self._pending[self._workers[worker].solve.remote(content)] = worker

    def events(self, seconds: float) -> Sequence[Event]:
        if not self._pending:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=seconds)
        if done:
            done, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        return [self._event(reference) for reference in done]

    def stop(self, worker: int) -> None:
        for reference in [reference for reference, owner in self._pending.items() if owner == worker]:
            del self._pending[reference]
            self._opening.discard(reference)
        self._ray.kill(self._workers.pop(worker), no_restart=True)

    def close(self) -> None:
        for actor in getattr(self, "_workers", {}).values():
            with suppress(Exception):  # it may be gone with its machine, or the cluster
                self._ray.kill(actor, no_restart=True)
        if self._ours:
            self._ray.shutdown()

    def _event(self, reference: Any) -> Event:
        worker, opening = self._pending.pop(reference), reference in self._opening
        self._opening.discard(reference)
        try:
            content = self._ray.get(reference)
        except self._ray.exceptions.RayError as problem:
            with suppress(Exception):  # it may be alive, and only out of reach
                self._ray.kill(self._workers.pop(worker), no_restart=True)
            return Gone(worker, f"was lost ({_detail(problem)})")
        if opening:
            return Ready(worker) if content is None else Failed(worker, arrived(content))
        succeeded, answer = content  # of our own worker
        return Answered(worker, pickle.loads(answer)) if succeeded else Failed(worker, arrived(answer))

    def _stored(self, content: bytes) -> Any:
        try:
            return self._ray.put(content)
        except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError) as problem:
            raise EngineError(
                f"Ray's object store cannot take {len(content)} bytes ({_first_line(problem)}): make batches smaller, or give "
                "the cluster more memory for objects"
            ) from problem


def _imported(address: str) -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":  # where Ray's clusters are switched off, it listens on the loopback interface alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as problem:
        raise EngineError(f"the engine Ray needs ray ({problem}): pip install 'genprior[ray]'") from None
    return ray


def _connect(ray: ModuleType, address: str) -> bool:
    """Connect to a cluster. False where the caller is connected already, and stays so."""
    if ray.is_initialized():
        _refuse_another(ray, address)
        return False
    wanted = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if wanted == "local":
        options |= {"include_dashboard": False}
    else:
        _refuse_silent(_started_here() if wanted == "auto" else wanted)
    try:
        ray.init(address=wanted, **options)
    except ConnectionError as problem:
        where = "on this machine" if wanted == "auto" else f"at {wanted}"
        raise EngineError(
            f"there is no Ray cluster {where} ({_first_line(problem)}): start one with ray start --head, give its address, "
            "or local for one on this machine alone"
        ) from None
    except (RuntimeError, ValueError, ImportError) as problem:
        raise EngineError(f"the Ray cluster at {wanted} cannot be used: {_first_line(problem)}") from problem
    return True


def _refuse_another(ray: ModuleType, address: str) -> None:
    """Raise where this process is connected to another cluster than it is asked to use."""
    here = ray.get_runtime_context().gcs_address
    if address not in {"auto", "local", here}:
        raise EngineError(
            f"this process is connected to the Ray cluster at {here} already, so it cannot use {address}: call ray.shutdown() "
            "first, or give the address auto for that one"
        )


def _started_here() -> str:
    """The address that ``auto`` stands for, where Ray tells it; its cluster may be dead."""
    try:
        from ray._private.services import canonicalize_bootstrap_address  # noqa: PLC0415

        return str(canonicalize_bootstrap_address("auto"))
    except Exception:  # another version of Ray, or none was started: ray.init says so
        return "auto"


def _refuse_silent(address: str) -> None:
    """Raise where nobody answers at an address: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        if address == "auto":
            return
        raise EngineError(f"address is {address!r}, expected auto, local, host:port or ray://host:port")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _refuse_others(connection)
    except (OSError, OverflowError) as problem:
        raise EngineError(
            f"no Ray cluster answers at {address} ({problem}): is it running, and can this machine reach it? "
            "ray status, on its machine, shows it"
        ) from None


def _refuse_others(connection: socket.socket) -> None:
    """Raise where no settings of HTTP/2 come back, with which every server of Ray begins."""
    connection.sendall(_GREETING)
    head = b""
    while len(head) < _FRAME and (piece := connection.recv(_FRAME - len(head))):
        head += piece
    if head[3:4] != _SETTINGS:
        raise ConnectionError("something else than Ray answers there")


def _room(ray: ModuleType, engine: Ray) -> int:
    """How many workers fit, machine by machine."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needs = {"CPU": engine.cpus_per_worker, "GPU": engine.gpus_per_worker}
    for name, need in needs.items():
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if need > most:
            argument = f"{name.lower()}s_per_worker"
            raise EngineError(
                f"{argument} is {need:g}, and no machine of the Ray cluster has more than {most:g}: ask for less, or start "
                f"Ray there with --num-{name.lower()}s"
            )
    return sum(
        math.floor(min(node.get(name, 0.0) / need for name, need in needs.items() if need) + 1e-9) for node in nodes
    )


def _detail(problem: BaseException) -> str:
    """How a worker ended, where Ray knows."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(problem))
    if "creation task" in text:
        cause = next(line.strip() for line in reversed(text.splitlines()) if line.strip())
        return f"{cause}: is genprior installed on its machine, in the same version?"
    _, found, detail = text.partition("Worker exit detail: ")
    return detail.partition(". Some common causes")[0].strip() if found else _first_line(problem)


def _first_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[0] if lines else type(problem).__name__
