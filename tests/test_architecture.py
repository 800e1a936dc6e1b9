"""Who imports whom: the graph has no cycle, is drawn in docs/design.md, and `import genprior` loads only what `solve` needs.

``python -m tests.test_architecture`` draws it anew.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import genprior

ROOT = Path(genprior.__file__).parent
DESIGN = Path(__file__).parents[1] / "docs" / "design.md"
BEGIN, END = "<!-- imports: drawn by tests/test_architecture.py -->\n```text\n", "```\n"


def imports(node: ast.AST) -> Iterator[str]:
    """The modules of ours that a file imports, wherever it does, but for types alone and for lazy aliases."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (name for other in child.orelse for name in imports(other))
        elif isinstance(child, ast.FunctionDef) and child.name == "__getattr__":
            continue
        elif isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "genprior":
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name.split(".")[0] == "genprior")
        else:
            yield from imports(child)


def package_of(module: str) -> str:
    """``solvers`` of ``genprior.solvers.admm.ADMM``; the names that genprior itself exports belong to no package."""
    _, _, rest = module.partition(".")
    first = rest.split(".")[0]
    return first if (ROOT / first).is_dir() or (ROOT / f"{first}.py").is_file() else ""


def package_graph() -> dict[str, set[str]]:
    """Packages and modules at the top, each with those that it imports. Private modules are part of the ground."""
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        here = package_of(f"genprior.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}")
        found = {package_of(name) for name in imports(ast.parse(path.read_text(encoding="utf-8")))}
        graph.setdefault(here, set()).update(found - {here, ""})
    return {name: others for name, others in graph.items() if name not in {"", "__init__", "__main__"}}


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    found = []
    while sorter.is_active():
        ready = sorter.get_ready()
        found.append(sorted(ready))
        sorter.done(*ready)
    return found


def drawn(graph: dict[str, set[str]]) -> str:
    """One line for each package, those that import nothing below all others."""
    lines = []
    for names in reversed(layers(graph)):
        for name in names:
            public = sorted(other for other in graph[name] if not other.startswith("_"))
            if not name.startswith("_"):
                lines.append(f"{name:<11} <- {', '.join(public) or 'nothing of ours'}")
        lines.append("")
    return "\n".join(lines).strip().replace("\n\n\n", "\n\n") + "\n"


def test_the_import_graph_has_no_cycle():
    try:
        layers(package_graph())
    except CycleError as problem:
        pytest.fail(" imports ".join(reversed(problem.args[1])))


@pytest.mark.parametrize(
    ("package", "importers"), [("lab", {"cli"}), ("app", {"cli"}), ("cli", set()), ("training", {"cli", "lab"})]
)
def test_what_only_commands_need_is_imported_by_commands(package, importers):
    assert {name for name, others in package_graph().items() if package in others} <= importers


def test_the_lab_is_imported_by_nothing_but_its_commands():
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if ROOT / "lab" not in path.parents
        and "lab" in {package_of(name) for name in imports(ast.parse(path.read_text(encoding="utf-8")))}
    }
    assert importers == {f"cli/{name}.py" for name in ("bench", "demo", "race", "reproduce")}


def test_the_drawing_in_the_documentation_is_true():
    text = DESIGN.read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown == drawn(package_graph()), "python -m tests.test_architecture draws it anew"


def test_import_genprior_loads_what_solve_needs():
    script = "import sys, genprior; print(*sorted(n for n in sys.modules if n.startswith('genprior.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert {"loop", "solvers", "problem"} <= loaded
    assert not loaded & {
        "theory",
        "lab",
        "report",
        "jobs",
        "app",
        "cli",
        "training",
        "defence",
        "bridges",
        "plot",
        "testing",
    }


if __name__ == "__main__":
    text = DESIGN.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    DESIGN.write_text(before + BEGIN + drawn(package_graph()) + END + rest.partition(END)[2], encoding="utf-8")
