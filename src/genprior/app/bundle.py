"""Downloads: arrays, images, a script, or all of them in a zip."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from genprior.app import images
from genprior.app.damage import Painted
from genprior.app.race import Race
from genprior.status import Status

FILES = {
    "result.zip": "Everything (zip)",
    "result.npz": "Arrays (npz)",
    "result.png": "Images (png)",
    "recover.py": "Script (py)",
}
"""Names of the files, with the titles of their buttons."""

_ZOOM = {1: 5, 3: 3}


def content(race: Race, name: str) -> bytes:
    """One of :data:`FILES`."""
    return _MAKERS[name](race)


def best_solver(race: Race) -> str:
    """The solver with the lowest objective: the choice of a user without the truth."""
    objectives = {name: float(result.objective[0]) for name, result in race.results.items()}
    return min(objectives, key=lambda name: objectives[name] if math.isfinite(objectives[name]) else math.inf)


def command(race: Race) -> str:
    """The command that repeats the best solver's run."""
    solver = best_solver(race)
    return race.recipe.command(solver, _seconds(race, solver))


def script(race: Race) -> str:
    """The Python script that repeats the best solver's run."""
    solver = best_solver(race)
    return race.recipe.script(solver, _seconds(race, solver))


def _seconds(race: Race, solver: str) -> float:
    """The time limit of the solver, or the time it used if it was stopped."""
    result = race.results[solver]
    return max(0.001, round(result.seconds, 3)) if result.status[0] is Status.INTERRUPTED else race.recipe.seconds


def _arrays(race: Race) -> bytes:
    """Truth, measurements, and for each solver the signal, the latent and the curve (seconds, error, objective)."""
    assert race.damaged is not None
    arrays = {"truth": race.recipe.truth.numpy(), "measured": race.damaged.measured.numpy()}
    if isinstance(race.recipe.damage, Painted) and race.recipe.damage.known is not None:
        arrays["known"] = race.recipe.damage.known.numpy()
    for lane in race.snapshot.lanes:
        if lane.name in race.results:
            result = race.results[lane.name]
            arrays[f"{lane.name}.signal"] = result.signal.numpy()
            arrays[f"{lane.name}.latent"] = result.z.numpy()
            arrays[f"{lane.name}.curve"] = np.array(lane.points)
    store = io.BytesIO()
    np.savez_compressed(store, **arrays)  # type: ignore[arg-type]
    return store.getvalue()


def _sheet(race: Race) -> bytes:
    """Truth, damaged image and the solvers' images in their order, side by side."""
    assert race.damaged is not None
    row = [race.recipe.truth, race.damaged.seen]
    row += [race.results[name].signal for name in race.recipe.solvers if name in race.results]
    return images.png(torch.cat(row), zoom=_ZOOM[race.recipe.truth.shape[1]])


def _verdicts(race: Race) -> bytes:
    """How each solver ended, as JSON."""
    lanes = [
        {
            "solver": lane.name,
            "status": lane.status,
            "error": _finite(lane.error),
            "objective": _finite(lane.objective),
            "steps": lane.steps,
            "passes": lane.passes,
            "seconds": lane.seconds,
            "advice": lane.problem or lane.advice,
            "plan": lane.plan,
        }
        for lane in race.snapshot.lanes
    ]
    words = race.recipe.damage.words(race.recipe.truth.shape[1:])
    document = {"generator": race.recipe.generator, "damage": words, "solvers": lanes}
    return (json.dumps(document, indent=2) + "\n").encode()


def _everything(race: Race) -> bytes:
    """All files, and the inputs of the script and the command."""
    store = io.BytesIO()
    with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as file:
        for name in FILES:
            if name != "result.zip":
                file.writestr(name, content(race, name))
        file.writestr("result.json", _verdicts(race))
        file.writestr("command.txt", command(race) + "\n")
        for name, data in inputs(race).items():
            file.writestr(name, data)
    return store.getvalue()


def inputs(race: Race) -> dict[str, bytes]:
    """The image and the other inputs of the script and the command."""
    assert race.damaged is not None
    files = {"input.png": images.png(race.recipe.truth)}
    if race.recipe.image_file != "input.png":
        files[race.recipe.image_file] = _npy(race.recipe.truth)
    for name, tensor in race.recipe.damage.files(race.damaged).items():
        files[name] = images.png(tensor[None, None].float()) if name.endswith(".png") else _npy(tensor)
    return files


def _npy(tensor: Tensor) -> bytes:
    store = io.BytesIO()
    np.save(store, tensor.numpy(), allow_pickle=False)
    return store.getvalue()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_MAKERS: dict[str, Callable[[Race], bytes]] = {
    "result.zip": _everything,
    "result.npz": _arrays,
    "result.png": _sheet,
    "recover.py": lambda race: script(race).encode(),
}
