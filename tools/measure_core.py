"""Measure how much there is to read: lines, states, constants without an explanation, and the path of a call of ``solve``.

    python tools/measure_core.py src [../old/src ...]

For each source folder, in a process of its own: lines of Python by package; the fields of the states of several solvers;
numbers at module level in the solvers and the loop that no docstring or comment explains; files and record types (data
classes and named tuples) that ``gp.solve(problem)`` passes through on a small least-squares problem of the bundled MNIST
generator with the default solver; and what ``import genprior`` adds to the import of torch (median of five; needs a quiet
machine).
"""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

LOOP = ("chunk.py", "rows.py", "solve.py", "checkpoint.py", "storage.py", "progress.py")
"""The loop of versions that had no package for it."""
SOLVERS = ("Auto", "ExactADMM", "LinearizedADMM", "LBFGS", "LevenbergMarquardt", "GradientDescent", "Adam")


def lines(root: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of each package; ``.``: the modules outside of them."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        package = inside.parts[0] if len(inside.parts) > 1 else "."
        files, count = found.get(package, (0, 0))
        found[package] = files + 1, count + len(path.read_text(encoding="utf-8").splitlines())
    return found


def unexplained(root: Path) -> tuple[list[str], int]:
    """Numbers at module level in solvers and loop without docstring or comment, and how many numbers there are."""
    folders = [root / "solvers", root / "loop"]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    found, total = [], 0
    for path in paths + [root / name for name in LOOP if (root / name).is_file()]:
        source = path.read_text(encoding="utf-8")
        text, body = source.splitlines(), ast.parse(source).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            name = number_name(node)
            if name is None:
                continue
            total += 1
            comment = "#" in text[node.lineno - 1] or text[node.lineno - 2].startswith("#")
            docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if not comment and not docstring:
                found.append(f"{path.relative_to(root)}:{name}")
    return found, total


def number_name(node: ast.stmt) -> str | None:
    """The name in ``_NAME = number``; None of any other statement."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return None
    if not isinstance(targets[0], ast.Name) or not re.fullmatch(r"_?[A-Z][A-Z0-9_]*", targets[0].id):
        return None
    number = re.fullmatch(r"[-\d(][\d._e+\-*/ (),]*", ast.unparse(value))
    return targets[0].id if number else None


def leaves(state: Any) -> int:
    """Fields of a tree of records, without the records themselves."""
    if type(state).__name__ == "Evaluation":  # a value of its own, as a tensor is
        return 1
    if isinstance(state, dict):
        return sum(leaves(part) for part in state.values())
    if is_dataclass(state) and not isinstance(state, type):
        return sum(leaves(getattr(state, field.name)) for field in fields(state))
    return 1


def broadest(state: Any) -> int:
    """Most fields in one record of a tree."""
    if not is_dataclass(state) or isinstance(state, type) or type(state).__name__ == "Evaluation":
        return 0
    return max(len(fields(state)), *(broadest(getattr(state, field.name)) for field in fields(state)))


def problems(gp: Any) -> dict[str, Any]:
    """A small problem that is smooth, and one that is not."""
    generator = gp.load_generator("mnist")
    truth = generator(generator.sample_latent(4, seed=7)).detach()
    operator = gp.operators.Gaussian(200, generator.signal_shape, seed=0)
    return {
        "least squares": gp.Problem(generator, loss=gp.LeastSquares(operator, operator(truth))),
        "l1": gp.Problem(generator, on_signal=gp.L1().around(truth)),
    }


def last_state(gp: Any, problem: Any, solver: Any) -> Any:
    """The state after two steps; None where the method does not fit the problem."""
    seen: list[Any] = []
    options: dict[str, Any] = {"stop": gp.MaxSteps(2), "progress": False}
    try:
        gp.solve(problem, solver, callbacks=[lambda view: seen.append(view.state)], **options)
    except (TypeError, ValueError):
        return None
    return seen[-1]


def states(gp: Any) -> Iterator[tuple[str, int, int, int]]:
    """Solver and problem; fields of its state, of the broadest record in it, and of the whole tree."""
    for title, problem in problems(gp).items():
        for name in SOLVERS:
            state = last_state(gp, problem, getattr(gp, name)())
            if state is not None:
                yield f"{name}, {title}", len(fields(state)), broadest(state), leaves(state)


def visited(root: Path, call: Callable[[], object]) -> tuple[set[Path], set[str]]:
    """Files below ``root`` whose code a call runs, and the record types that it makes."""
    files, types = set(), set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(str(root)):
            files.add(Path(code.co_filename).relative_to(root))
        elif code.co_filename.startswith("<"):  # the constructors of records are written by Python
            made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
            if made.__module__.startswith("genprior") and code.co_name in {"__init__", "__new__", "<lambda>"}:
                types.add(made.__qualname__)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files, types


def import_seconds(source: Path) -> tuple[float, float]:
    """Milliseconds of ``import genprior``, and without those of torch; medians."""
    whole, rest = [], []
    for _ in range(5):
        command = [sys.executable, "-X", "importtime", "-c", "import genprior"]
        environment = os.environ | {"PYTHONPATH": str(source)}
        text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
        rows = [line.removeprefix("import time:").split("|") for line in text.splitlines()[1:]]
        times = {row[2].strip(): int(row[1]) / 1000 for row in rows if len(row) == 3}
        whole.append(times["genprior"])
        rest.append(times["genprior"] - times["torch"])
    return statistics.median(whole), statistics.median(rest)


def report(source: Path) -> None:
    """Print everything about the version in ``source``, which is first on the path."""
    gp = import_module("genprior")
    root = source / "genprior"
    assert Path(gp.__file__).parent == root, f"genprior came from {gp.__file__}, not from {root}"
    loaded = [name for name in sys.modules if name.split(".")[0] == "genprior"]
    print(f"\n{source}\nmodules loaded by import genprior: {len(loaded)}")
    print("import genprior: {:.0f} ms, without torch {:.0f} ms".format(*import_seconds(source)))
    by_package = lines(root)
    print("lines by package:", ", ".join(f"{name} {count} ({files})" for name, (files, count) in by_package.items()))
    print(f"lines: {sum(count for _, count in by_package.values())}, files: {sum(n for n, _ in by_package.values())}")
    bare, total = unexplained(root)
    print(f"numbers at module level in solvers and loop: {total}, not explained: {len(bare)}: {', '.join(bare)}")
    for name, own, most, flat in states(gp):
        print(f"state of {name}: {own} fields, {most} in its broadest record, {flat} in all")
    problem = problems(gp)["least squares"]
    files, types = visited(root, lambda: gp.solve(problem, progress=False))
    packages = Counter(path.parts[0] if len(path.parts) > 1 else "." for path in files)
    print(f"solve passes through {len(files)} files {dict(packages)} and {len(types)} record types")
    print(f"  files: {', '.join(sorted(map(str, files)))}\n  types: {', '.join(sorted(types))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        report(Path(sys.argv[2]))
    else:
        for argument in sys.argv[1:]:
            place = str(Path(argument).resolve())
            environment = os.environ | {"PYTHONPATH": place, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, __file__, "--worker", place], env=environment, check=True)
