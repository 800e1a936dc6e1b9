"""Work for engines to do: small things that can go wrong on purpose."""

import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path

import torch

from genprior.engines import Blind, Place


@dataclass(frozen=True)
class Squares:
    """Answers a number by its square and the worker's process; some batches end their worker, or hang, or fail."""

    deadly: tuple[int, ...] = ()
    deadly_once: str = ""
    """A folder in which batch 0 leaves a mark, so that it kills its worker only the first time."""
    hanging: tuple[int, ...] = ()
    hanging_once: str = ""
    """The same for batch 1, which hangs."""
    failing: tuple[int, ...] = ()
    blind: bool = False
    broken: str = ""
    seconds: float = 0.0
    parent: bool = False
    """Whether a worker starts a process of its own, whose number takes the place of the worker's in answers."""
    strange: bool = False
    """Whether the error of a batch is of a type that only workers know."""
    wordy: int = 0
    """So many letters are written to standard error, without an end of the line."""

    def open(self, place: Place):
        if self.broken == "import":
            import there_is_no_such_module  # noqa: F401
        if self.broken == "exit":
            sys.stderr.write("no luck today\n")
            os._exit(3)
        if self.broken:
            raise ValueError(self.broken)
        child = subprocess.Popen(["sleep", "1000"]) if self.parent else None
        sys.stderr.write("x" * self.wordy)

        def solve(task: tuple[int, bool]):
            number, whole = task
            if self.blind and not whole and not place.visible:
                return Blind("the folder is not there")
            if number in self.hanging or (number == 1 and first(self.hanging_once, 1)):
                time.sleep(1000)
            if number in self.failing and self.strange:
                raise strange(f"batch {number} makes no sense")
            if number in self.failing:
                raise ValueError(f"batch {number} makes no sense")
            if number in self.deadly or (number == 0 and first(self.deadly_once, 0)):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(self.seconds)
            os.write(1, b"written by a worker where answers must not be disturbed")
            return number**2, child.pid if child else os.getpid(), torch.get_num_threads(), whole

        return solve


def strange(text: str) -> Exception:
    """An error of a module that exists in this process alone."""
    module = sys.modules["only_here"] = types.ModuleType("only_here")
    module.Odd = type("Odd", (ValueError,), {"__module__": "only_here"})
    return module.Odd(text)


def first(folder: str, number: int) -> bool:
    """Whether this is the first time; never without a folder."""
    if not folder or (mark := Path(folder) / str(number)).exists():
        return False
    mark.touch()
    return True
