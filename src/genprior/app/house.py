"""What all visitors of the page share."""

from __future__ import annotations

from dataclasses import dataclass

from genprior.app.queue import Queue


@dataclass(frozen=True)
class House:
    """The queue, and the limits."""

    queue: Queue
    time_limit: float
    """Seconds of computing for one race."""
    upload_limit: float
    """Megabytes."""

    @property
    def patience(self) -> float:
        """Seconds by the wall's clock after which a race is stopped: the machine may be busy with other things."""
        return 4 * self.time_limit + 30
