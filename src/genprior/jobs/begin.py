"""What a command does with the generator of a job before the first batch is solved in its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from genprior.generators import Generator

Begin = Callable[[Generator, int | None], object]
"""Called with the generator, and the number of threads that solved the job's last batch, if an earlier run did."""
_begin: ContextVar[Begin | None] = ContextVar("begin", default=None)


@contextmanager
def beginning_with(begin: Begin) -> Iterator[None]:
    """Inside the block, jobs whose batches are solved in this process call this before the first one."""
    token = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(token)


def begin(generator: Generator, threads: int | None) -> None:
    """The first batch is about to be solved here."""
    do = _begin.get()
    if do is not None:
        do(generator, threads)
