"""Processes that start at once: forked from a server that has imported torch and genprior, and done nothing else.

Most of what a new Python does is import torch, for two seconds. Where the start itself is under test, use ``subprocess``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["genprior"])


def _main(script: str, words: list[str], folder: str, output: str | None, strict: bool) -> None:
    if output is not None:
        for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
            with open(f"{output}.{name}", "wb") as file:
                os.dup2(file.fileno(), stream.fileno())
    os.chdir(folder)
    sys.argv, sys.path[0] = [script, *words], str(Path(script).parent)
    if strict:
        warnings.simplefilter("error")
    runpy.run_path(script, run_name="__main__")


def _process(script: Path, words: tuple[object, ...], folder: Path | None, output: str | None, strict: bool):
    given = str(script), [str(word) for word in words], str(folder or Path.cwd()), output, strict
    return _SERVER.Process(target=_main, args=given)


@contextlib.contextmanager
def started(script: Path, *words: object) -> Iterator[ForkServerProcess]:
    """The script, running; killed at the end if it still is."""
    process = _process(script, words, None, None, False)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def run(script: Path, *words: object, folder: Path | None = None, strict: bool = False, timeout: float = 300.0):
    """What ``subprocess.run`` says about a script, with its output as text; ``strict`` makes warnings errors."""
    output = str(script) + ".shown"
    process = _process(script, words, folder, output, strict)
    process.start()
    process.join(timeout)
    try:
        if process.exitcode is None:
            raise subprocess.TimeoutExpired(str(script), timeout)
        shown = [Path(f"{output}.{name}").read_text(encoding="utf-8") for name in ("out", "err")]
        return subprocess.CompletedProcess([str(script), *map(str, words)], process.exitcode, *shown)
    finally:
        process.kill()
        process.join()
        process.close()
