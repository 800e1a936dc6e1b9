"""With how many threads batches were solved, on record: the last bits of results depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def threads_since(begun: int) -> dict[str, Any]:
    """For the record of a batch that ends now: the present number, and that with which it was begun, if it was another."""
    now = torch.get_num_threads()
    return {"threads": now, "other_threads": [begun] if begun != now else []}


def threads_of_all(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The same of all batches: the number of the last one, and all others.

    Examples
    --------
    >>> threads_of_all([{"threads": 4, "other_threads": [8]}, {"threads": 2, "other_threads": []}, {}])
    {'threads': 2, 'other_threads': [4, 8]}
    """
    known = [run for run in runs if run.get("threads") is not None]  # batches that were set aside have none
    last = known[-1]["threads"] if known else None
    found = {number for run in known for number in (run["threads"], *run["other_threads"])}
    return {"threads": last, "other_threads": sorted(found - {last})}


def solved_by(run: dict[str, Any]) -> str:
    """Who solved the batches, in words.

    Examples
    --------
    >>> solved_by({"engine": "this process", "threads": 1, "other_threads": [2]})
    'this process, with 1 thread (earlier with 2)'
    """
    threads = run["threads"]
    count = "" if threads is None else f", with {threads} thread{'s' if threads > 1 else ''}"
    others = " and ".join(map(str, run["other_threads"]))
    return f"{run['engine']}{count}" + (f" (earlier with {others})" if others else "")
