"""Every Python snippet in README and docs runs; every public name is documented; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import genprior as gp
from tests import processes

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_snippets_run(page, tmp_path):
    """All snippets of a page run one after the other, in a process of their own and an empty folder; warnings are errors."""
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(snippets(page)), encoding="utf-8")
    done = processes.run(script, folder=tmp_path, strict=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", gp.__all__)
def test_public_names_exist_and_are_documented(name):
    assert getattr(gp, name).__doc__


def test_readme_names_every_public_part():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = [*gp.operators.__all__, *gp.solvers.__all__]
    helpers = {
        "Operator",
        "RowForm",
        "Composition",
        "GramForm",
        "Scaled",
        "Sum",
        "Transpose",
        "CGResult",
        "DeepinvOperator",
        "Choice",
        "Common",
        "Evidence",
        "Solver",
        "State",
        "Vjp",
        "conjugate_gradient",
    }
    helpers |= {"duals", "penalties", "trial", "w_steps", "z_steps"}
    missing = [name for name in wanted if name not in helpers and f"`{name}" not in text]
    assert not missing
