"""What all visitors of the page share."""

from __future__ import annotations

from dataclasses import dataclass, field

from genprior.app.decoder import Decoder
from genprior.app.queue import Queue
from genprior.app.security.hosts import Hosts


@dataclass(frozen=True)
class ServerState:
    """The queue, the limits, the names, and the reader of uploads."""

    queue: Queue
    time_limit: float
    """Seconds of computing for one race."""
    upload_limit: float
    """Megabytes."""
    hosts: Hosts = field(default_factory=Hosts)
    """Names the server answers to."""
    decoder: Decoder = field(default_factory=Decoder)

    @property
    def patience(self) -> float:
        """Seconds by the wall's clock after which a race is stopped: the machine may be busy with other things."""
        return 4 * self.time_limit + 30

    def close(self, wait: float = 0.0) -> None:
        """Stop everything; wait so many seconds at most until no race runs."""
        self.decoder.close()
        self.queue.close(wait)
