"""State shared by all visitors."""

from __future__ import annotations

from dataclasses import dataclass, field

from genprior.app.decoder import Decoder
from genprior.app.queue import Queue
from genprior.app.security.hosts import Hosts


@dataclass(frozen=True)
class ServerState:
    """The queue, the limits, the host names, and the decoder of uploads."""

    queue: Queue
    time_limit: float
    """Seconds of computing for one race."""
    upload_limit: float
    """Megabytes."""
    hosts: Hosts = field(default_factory=Hosts)
    """Accepted host names."""
    decoder: Decoder = field(default_factory=Decoder)

    @property
    def patience(self) -> float:
        """Wall-clock seconds after which a race is stopped, in case the machine is busy."""
        return 4 * self.time_limit + 30

    def close(self, wait: float = 0.0) -> None:
        """Stop everything; wait at most ``wait`` seconds for the races to end."""
        self.decoder.close()
        self.queue.close(wait)
