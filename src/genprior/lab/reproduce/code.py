"""The code on which numbers depend: results of different code must not be combined."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path


def code_of(modules: Iterable[str], root: Path) -> str:
    """Digest of these modules and all that they import below ``root``.

    It covers statements, not files: documentation, comments and layout may change, and files may be renamed, split or
    joined.
    """
    found: set[str] = set()
    waiting, seen = [path for name in modules for path in _files(name, root)], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = ast.parse(path.read_bytes())
        waiting += [file for name in _imports(tree) for file in _files(name, root)]
        found |= {ast.unparse(statement) for statement in _Bare().visit(tree).body}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


class _Bare(ast.NodeTransformer):
    """Removes imports and documentation."""

    def visit_Import(self, node: ast.Import) -> None:
        """Leave it out."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Leave it out."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Remove it if it is documentation."""
        return None if isinstance(node.value, ast.Constant) else node


def _imports(tree: ast.AST) -> Iterator[str]:
    """All imports, of modules or of names in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(name: str, root: Path) -> list[Path]:
    """The file of a module, or of the module that a name is in; none if it is not below ``root``."""
    place = root.joinpath(*name.split("."))
    for module in (place, place.parent):
        files = [path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file()]
        if files:
            return files
    return []
