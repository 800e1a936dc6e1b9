"""Every script of the gallery runs, in its short form, without a warning, and draws a picture."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))


@pytest.fixture
def plt(monkeypatch):
    monkeypatch.setenv("GENPRIOR_SHORT", "1")
    monkeypatch.syspath_prepend(str(FOLDER))
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield plt
    torch.set_num_threads(threads)
    plt.close("all")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem.removeprefix("plot_"))
def test_script_runs_and_draws(script, plt):
    runpy.run_path(str(script), run_name="__main__")
    assert plt.get_fignums(), f"{script.name} draws nothing"


def test_there_are_enough_and_the_style_is_kept():
    assert len(SCRIPTS) >= 10
    for script in SCRIPTS:
        head = script.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()
        assert set(head[1]) == {"="} and len(head[1]) >= len(head[0]), f"{script.name} has no title"
