"""The solvers of docs/write-a-solver.md pass all laws, and are as short as the page says."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import genprior as gp
from genprior.testing import Laws

PAGE = Path(__file__).parents[2] / "docs" / "write-a-solver.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def written() -> ModuleType:
    """What the page defines, without what it runs and prints."""
    module = ModuleType("written_in_the_docs")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    with contextlib.redirect_stdout(io.StringIO()):
        for snippet in SNIPPETS[:-1]:
            exec(snippet, vars(module))
    return module


PAGE_MODULE = written()
TABLES = [part for part in vars(PAGE_MODULE).values() if isinstance(part, type) and issubclass(part, Laws)]


class TestAccelerated(PAGE_MODULE.TestAccelerated):
    pass


class TestConjugateGradients(PAGE_MODULE.TestConjugateGradients):
    pass


def test_both_solvers_are_tested():
    assert {table.__name__ for table in TABLES} >= {"TestAccelerated", "TestConjugateGradients"}


@pytest.mark.parametrize(("marker", "most"), [("class Accelerated(", 60), ("class ConjugateGradients(", 60)])
def test_they_are_as_short_as_the_page_says(marker, most):
    snippet = next(text for text in SNIPPETS if marker in text)
    assert len(snippet.splitlines()) <= most


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_public_names_suffice(snippet):
    imported = re.findall(r"^(?:from|import) (genprior\S*)", snippet, flags=re.MULTILINE)
    assert set(imported) <= {"genprior", "genprior.testing"}
    assert not re.search(r"\._\w", snippet)


def test_what_the_tutorial_uses_is_exported():
    assert {"Solver", "State", "Common", "trial", "per_item", "testing"} <= set(gp.__all__)
