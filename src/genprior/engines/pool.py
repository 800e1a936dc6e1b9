"""What dispatching needs of an engine's workers: start one, send it a batch, hear of it, stop it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ready:
    """A worker has opened the work, and waits for its first batch."""

    worker: int


@dataclass(frozen=True)
class Answered:
    """A worker's answer to its batch."""

    worker: int
    answer: Any


@dataclass(frozen=True)
class Failed:
    """Opening the work, or solving a batch, raised an exception."""

    worker: int
    error: BaseException


@dataclass(frozen=True)
class Gone:
    """A worker is lost: killed, or its machine is."""

    worker: int
    reason: str


Event = Ready | Answered | Failed | Gone


class Pool(ABC):
    """Workers by number. A number is never used again; of a worker that was stopped no event is heard any more."""

    name: str
    """In words, such as ``4 processes``."""
    notes: Sequence[str] = ()
    """For the user."""

    @abstractmethod
    def start(self, worker: int) -> None:
        """Begin to start a worker: :class:`Ready` or :class:`Gone` follows."""

    @abstractmethod
    def send(self, worker: int, task: object) -> None:
        """Give a batch to a worker that is free; a worker that is lost meanwhile is heard of as :class:`Gone`."""

    @abstractmethod
    def events(self, seconds: float) -> Sequence[Event]:
        """All that has happened; where nothing has, the next event, unless none comes for so long."""

    @abstractmethod
    def stop(self, worker: int) -> None:
        """End a worker at once, whatever it is doing."""

    @abstractmethod
    def close(self) -> None:
        """End all of them, and everything that was started for them."""
