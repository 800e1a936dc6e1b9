"""What an engine is: batches of work go to workers, answers come back, in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Task_contra = TypeVar("Task_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class EngineError(RuntimeError):
    """An engine cannot start, reach or keep its workers; what was answered before is not lost."""


def _silent(done: float, note: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Place:
    """Where a worker is, as its work must know it."""

    number: int | None = None
    """Of the worker, where several share the graphics cards of a machine."""
    visible: bool = True
    """Whether this is the driver's own machine and process, which sees all that the driver sees."""
    on_progress: Callable[[float, str], object] = _silent
    """Called within a batch with the number of its items that are done, and a note; only the driver itself has one."""

    def device(self, wanted: str) -> str:
        """The device for torch: as wanted, and where that is any graphics card, one for each worker in turn."""
        if wanted != "cuda" or self.number is None:
            return wanted
        import torch  # noqa: PLC0415 - slow to import, and seldom needed

        return f"cuda:{self.number % max(1, torch.cuda.device_count())}"


class Work(Protocol[Task_contra, Answer_co]):
    """What the workers do, as one value that can be pickled; each worker opens it once."""

    def open(self, place: Place) -> Callable[[Task_contra], Answer_co | Blind]:
        """Load what all batches need; what comes back solves one batch."""
        ...


@dataclass(frozen=True)
class Blind:
    """The answer of a worker that cannot see the batch's inputs: it is asked again, with their contents."""

    reason: str


@dataclass(frozen=True)
class Poisoned:
    """In place of an answer: the batch was set aside, because workers died of it again and again."""

    reason: str


@dataclass
class Crew:
    """The workers of an engine, for whoever watches the job."""

    engine: str
    """In words, such as ``4 processes``."""
    wanted: int
    """Workers asked for, or fewer where there are fewer batches."""
    alive: int = 0
    """Workers that are solving or ready to."""
    answered: int = 0
    """Batches that were solved."""
    deaths: int = 0
    """Workers that were lost: killed, gone with their machine, or stopped because they hung."""
    retries: int = 0
    """Batches that were handed out again."""
    poisoned: int = 0
    """Batches that were set aside."""
    notes: list[str] = field(default_factory=list)
    """For the user, such as that fewer workers fit than were asked for."""

    @property
    def at_once(self) -> int:
        """Batches that are solved at a time: as many as workers wanted, and once answers come, as those that are there."""
        return max(1, self.alive) if self.answered else self.wanted


def _unwatched(crew: Crew) -> None:
    """Watch nothing."""


@dataclass(frozen=True)
class Batches(Generic[Task, Answer]):
    """Batches of one job, by number."""

    work: Work[Task, Answer]
    numbers: Iterable[int]
    """Each once; an iterator is asked for the next number when a worker is free."""
    task: Callable[[int, bool], Task]
    """The task of a batch, made when it is handed out; with True, it must hold the contents of its inputs."""
    seconds: Callable[[int], float | None] = lambda number: None
    """How long the batch that was just handed out may take by its own limits; None where it has none."""
    watch: Callable[[Crew], object] = _unwatched
    """Called whenever the crew has changed, and now and then."""
    on_progress: Callable[[float, str], object] = _silent
    """Called within a batch that the driver itself solves, with the number of its items that are done, and a note."""
    count: int | None = None
    """How many batches there are, where that is known."""


Answers: TypeAlias = Generator[tuple[int, Answer | Poisoned], None, None]
"""Number and answer of every batch; closing it ends the workers."""


class Engine(ABC):
    """Solves batches somewhere. Frozen data: an engine holds nothing before ``run`` and nothing after it."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many batches are solved at a time, as far as that is known before the start."""

    @property
    def here(self) -> bool:
        """Whether the workers are on this machine, and see its files."""
        return True

    @abstractmethod
    def run(self, batches: Batches[Task, Answer]) -> Answers[Answer]:
        """Number and answer of every batch, as they come.

        An exception that solving a batch raises is raised here. When the iterator is closed, the workers are gone.
        """


@dataclass(frozen=True)
class Serial(Engine):
    """No workers: the driver solves one batch after the other, in order."""

    @property
    def size(self) -> int:
        """One."""
        return 1

    def run(self, batches: Batches[Task, Answer]) -> Answers[Answer]:
        """In the order of the numbers."""
        crew = Crew("this process", 1, alive=1)
        batches.watch(crew)
        solve = batches.work.open(Place(on_progress=batches.on_progress))
        for number in batches.numbers:
            answer = solve(batches.task(number, False))
            if isinstance(answer, Blind):
                crew.retries += 1
                answer = solve(batches.task(number, True))
            if isinstance(answer, Blind):
                raise EngineError(f"batch {number} cannot be solved: {answer.reason}")
            yield number, answer
            batches.watch(crew)
