"""Options for where batches are solved: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from genprior.cli.machine import Machine

if TYPE_CHECKING:
    from genprior.engines import Engine


@dataclass(frozen=True, kw_only=True)
class Workers(Machine):
    """Workers, and where they are."""

    workers: int | None = None
    """Number of workers, each with its own generator: processes on this machine, with one thread each unless --threads says
    more; or with --engine ray on a cluster, there by default as many as fit. Without it this process works alone."""
    engine: Literal["local", "ray"] = "local"
    """ray: workers on a Ray cluster; needs pip install 'genprior[ray]'."""
    address: str = "auto"
    """Ray cluster: auto (RAY_ADDRESS, or the one started on this machine), local (one for this job alone), host:6379, or
    ray://host:10001."""
    cpus_per_worker: float = 1.0
    """Processors that each worker on Ray reserves."""
    gpus_per_worker: float = 0.0
    """Graphics cards that each worker on Ray reserves: 0.25 for four workers on a card; with --device cuda."""
    batch_time: float | None = None
    """Seconds after which a worker counts as hung, is stopped, and its batch repeated; by default 20 times the longest
    batch so far, and at least 10 minutes; without a limit until the first batch is solved."""

    @property
    def device_here(self) -> str:
        """The device of workers on Ray is that of their machines."""
        return "cpu" if self.engine == "ray" else self.device

    def chosen(self) -> Engine | None:
        """The engine; None for this process."""
        from genprior.engines import Local, Ray  # noqa: PLC0415 - slow to import

        if self.engine == "ray":
            return Ray(
                address=self.address,
                workers=self.workers,
                cpus_per_worker=self.cpus_per_worker,
                gpus_per_worker=self.gpus_per_worker,
                threads=self.threads,
                batch_seconds=self.batch_time,
            )
        default = {field.name: field.default for field in fields(Workers)}
        for name in ("address", "cpus_per_worker", "gpus_per_worker"):
            if getattr(self, name) != default[name]:
                raise ValueError(f"--{name.replace('_', '-')} is for Ray: add --engine ray, or leave it out")
        if self.workers is not None:
            return Local(self.workers, threads=self.threads or 1, batch_seconds=self.batch_time)
        if self.batch_time is not None:
            raise ValueError("--batch-time is for workers: add --workers, or leave it out")
        return None


def set_aside(count: int, total: int, reason: str) -> str:
    """What is said of poisoned items."""
    return (
        f"{count} of {total} items were set aside, because solving their batch ended its process again and again ({reason}): "
        "try a smaller --batch-size and another --out"
    )
