"""What experiments need to know of the workers that compute them."""

from __future__ import annotations

import torch

from genprior.engines import Crew, Engine, Local, Ray


def threads_of(engine: Engine | None) -> int:
    """The number of threads of what computes: a worker of the engine, or this process."""
    if isinstance(engine, Ray):
        return engine.threads or max(1, int(engine.cpus_per_worker))
    return engine.threads if isinstance(engine, Local) else torch.get_num_threads()


def use_threads(count: int) -> None:
    """Compute with so many in this process, whatever engine it belongs to."""
    if torch.get_num_threads() != count:  # setting them anew also changes how MKL divides its work
        torch.set_num_threads(count)


def crew_in_words(crew: Crew) -> str:
    """Who is at work."""
    return f"{crew.alive} of {crew.wanted} workers" + (f", {crew.deaths} lost" if crew.deaths else "")
