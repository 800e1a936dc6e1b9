"""Every script of the gallery runs, in its short form, without a warning, and draws a picture."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib
import pytest
import torch

import genprior as gp

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


def test_a_strangers_weights_are_found_and_nothing_of_theirs_is_run(tmp_path, plt, monkeypatch, capsys):
    """The package is not needed, so a double stands for it: its file of weights is read, its code raises."""
    package = tmp_path / "gan_face_generate"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('code of the package was run')")
    dcgan = runpy.run_path(str(FOLDER / "_dcgan.py"))
    torch.save({"netG_state_dict": dcgan["untrained"](64).state_dict()}, package / "weights.tar")
    monkeypatch.syspath_prepend(str(tmp_path))
    runpy.run_path(str(FOLDER / "plot_stranger_faces.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "gan-face-generate: found" in said and "(100, 1, 1) (3, 64, 64) (0.0, 1.0)" in said
    assert "mapped to [0, 1]" in said and plt.get_fignums()


def test_the_strangers_stand_in_keeps_the_contract(plt):
    """Its ReLUs have so many kinks that differences over wide steps are off by several percent."""
    network = runpy.run_path(str(FOLDER / "_dcgan.py"))["untrained"](4)
    generator = gp.Generator(network, (100, 1, 1), (3, 64, 64), signal_range=(-1, 1))
    for seed in range(3):
        report = gp.checks.check_generator(generator, seed=seed)
        assert report.ok, str(report)


def test_there_are_enough_and_the_style_is_kept():
    assert len(SCRIPTS) >= 10
    for script in SCRIPTS:
        head = script.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()
        assert set(head[1]) == {"="} and len(head[1]) >= len(head[0]), f"{script.name} has no title"
