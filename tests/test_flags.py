"""What the library says of its arguments, as the user of a command reads it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import genprior
from genprior.assessment import JOB
from genprior.cli.flags import as_flags, remember_options
from genprior.cli.recover import Recover
from genprior.cli.workers import Workers
from genprior.jobs.settings import Recovery
from genprior.solvers.registry import SOLVERS

ROOT = Path(genprior.__file__).parent
COMMANDS = {"jobs/check.py": "_command", "app/recipe.py": "command", "app/damage/linear.py": "command"}
"""Functions whose purpose is a command to copy."""
SPEAKERS = (
    "cli/",
    "lab/reports/",
    "lab/third_party/download.py",
    "app/damage/changed.py",
    "app/view/",
    "app/security/guard.py",
    "training/data/sources.py",
    "report/page.py",
    "engines/ray.py",
)
"""Commands, pages that show them, style sheets, and options of other programs."""


@pytest.fixture(autouse=True)
def options():
    remember_options(Recover(inputs=(Path("x"),), out=Path("o"), operator="identity"))


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("batch_size must be at least 1", "--batch-size must be at least 1"),
        ("signal_range must be given", "--range must be given"),
        ("give another `out`", "give another --out"),
        ("allow `skip=True`, or `restarts=8`", "allow --skip, or --restarts 8"),
        ("`latent_shape=(100,)` or `latent_shape=(100, 1, 1)`", "--latent-shape 100 or --latent-shape 100 1 1"),
        ("`signal_range=(0, 255)`", "--range 0 255"),
        ("`weights=a/ck.pt:g_ema`", "--weights a/ck.pt:g_ema"),
        ("`solve` and `width=3` are no options", "`solve` and `width=3` are no options"),
        ("it must stay, and out may too", "it must stay, and out may too"),
    ],
)
def test_arguments_become_flags(said, read):
    assert as_flags(said) == read


def test_the_options_of_the_command_and_of_the_job_are_the_same():
    """But for those that say how it speaks and who works, and the generator, which is one value in the library."""
    command = {field.name for field in fields(Recover)} - {"json", "shard", "dry_run"} - {
        field.name for field in fields(Workers)
    } | {"device"}
    source = {"generator", "weights", "latent_shape", "range", "label", "labels"}
    assert command - source == {field.name for field in fields(Recovery)} - {"source", "pictures"}


def test_advice_of_a_job_names_its_arguments():
    own = {field.name for field in fields(Recovery)}
    assert {getattr(JOB, name).partition("=")[0] for name in ("restarts", "steps", "time", "patience", "prior")} <= own


def test_the_help_names_every_solver(capsys):
    from genprior import cli

    with pytest.raises(SystemExit):
        cli.main(["denoise", "--help"])
    shown = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", shown) for name in SOLVERS)


def texts(path: Path) -> list[str]:
    """All text of a module, but for documentation and for functions that make commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = COMMANDS.get(path.relative_to(ROOT).as_posix())
    left_out = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) or (isinstance(node, ast.FunctionDef) and node.name == own)
        for inside in ast.walk(node)
        if isinstance(node, ast.FunctionDef) or isinstance(node.value, ast.Constant)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in left_out]
    return [node.value for node in found if isinstance(node.value, str)]


def test_only_commands_speak_of_flags():
    paths = [path for path in ROOT.rglob("*.py") if not path.relative_to(ROOT).as_posix().startswith(SPEAKERS)]
    found = {str(path): [text for text in texts(path) if re.search(r"(^|\s|\()--[a-z]+", text)] for path in paths}
    assert len(paths) > 100 and not {path: texts for path, texts in found.items() if texts}


def test_flags_in_the_library_would_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_flags.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('"""Says --help."""\nraise ValueError(f"{1}: give --out")\n')
    assert texts(path) == [": give --out"]
