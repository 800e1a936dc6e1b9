"""The documentation site, as far as it can be checked without building it: every public name, every page, the link checker."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

import genprior as gp

ROOT = Path(__file__).resolve().parents[1]
API = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
ROOMS = ["genprior.operators", "genprior.checks", "genprior.terms", "genprior.generators", "genprior.solvers"]
ROOMS += ["genprior.solvers.z_steps", "genprior.theory", "genprior.metrics", "genprior.plot"]
ROOMS += ["genprior.testing", "genprior.per_item"]
check = runpy.run_path(str(ROOT / "tools" / "check_docs.py"), run_name="check_docs")


def documented() -> dict[str, set[str]]:
    """Module to the names that the API page lists of it; all of ``__all__`` where it lists none."""
    found: dict[str, set[str]] = {}
    for module, body in re.findall(r"^\.\. public:: (\S+)\n((?:\n|   .*\n)*)", API, flags=re.MULTILINE):
        text = re.sub(r"^ +:\w+:$", "", body, flags=re.MULTILINE)
        try:
            names = set(text.replace(",", " ").split()) or set(getattr(importlib.import_module(module), "__all__", ()))
        except ModuleNotFoundError:
            assert ":optional:" in body
            continue
        found.setdefault(module, set()).update(names)
    return found


def test_the_api_page_has_every_public_name():
    listed = documented()
    named = {name for names in listed.values() for name in names} | {path.rpartition(".")[2] for path in listed}
    for path in ["genprior", *ROOMS]:
        try:
            public = set(importlib.import_module(path).__all__)
        except (ModuleNotFoundError, AttributeError):
            assert path == "genprior.theory"
            continue
        assert not public - named, f"docs/api.rst does not name {sorted(public - named)} of {path}"


def test_names_on_the_api_page_exist():
    for module, names in documented().items():
        missing = [name for name in names if not hasattr(importlib.import_module(module), name)]
        assert not missing, f"{module} has no {missing}"
    assert documented()["genprior"] <= set(gp.__all__)


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line.removesuffix("?") for line in index.splitlines()}
    missing = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem not in listed | {"index"}]
    assert not missing, f"docs/index.md does not list {missing}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('<a href="other.html#there">x</a>', []),
        ('<a href="missing.html">x</a>', ["index.html links to missing.html: no such file"]),
        ('<a href="other.html#nowhere">x</a>', ["index.html links to other.html#nowhere: no such anchor"]),
        ('<a href="#here">x</a><p id="here">', []),
        ('<script src="https://example.org/a.js"></script>', ["index.html loads https://example.org/a.js"]),
        ('<a href="https://example.org">x</a>', []),
        ('<img src="no.png">', ["index.html links to no.png: no such file"]),
    ],
)
def test_the_link_checker(tmp_path, body, expected):
    (tmp_path / "index.html").write_text(f"<html>{body}</html>", encoding="utf-8")
    (tmp_path / "other.html").write_text('<p id="there">', encoding="utf-8")
    assert check["problems"](tmp_path) == expected
