"""Every script of the gallery runs alone, in an empty folder, without a warning, and draws something.

For speed the searches are cut off after a few steps, here and not in the scripts: readers get what they see.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import torch

import genprior as gp
from genprior.models.examples import random_mlp

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("plot_*.py"))
STEPS = 3


@pytest.fixture
def plt(monkeypatch, tmp_path):
    """pyplot without windows; searches of a few steps; an empty folder, and nothing of this repository to import."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    solve = gp.solve

    def brief(problem, solver=None, *, stop, **options):
        return solve(problem, solver, stop=stop | gp.MaxSteps(STEPS), **options)

    monkeypatch.setattr(gp, "solve", brief)
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place or ".").resolve() not in INSIDE])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield plt
    torch.set_num_threads(threads)
    plt.close("all")


INSIDE = [ROOT, ROOT / "examples", ROOT / "tests"]


def run_alone(script: Path) -> dict[str, object]:
    return runpy.run_path(shutil.copy(script, Path.cwd()), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem.removeprefix("plot_"))
def test_script_runs_alone_and_draws(script, plt, monkeypatch):
    if script.stem == "plot_certificate":  # to certify the bundled network takes 15 s
        monkeypatch.setattr(gp, "load_generator", lambda name: random_mlp(8, 16, (1, 28, 28)))
    run_alone(script)
    assert plt.get_fignums(), f"{script.name} draws nothing"
    assert sorted(path.name for path in Path.cwd().iterdir()) == [script.name], "it leaves files behind"


def test_a_script_in_a_process_of_its_own(tmp_path):
    """As a user runs a download: full length, no test around it."""
    shutil.copy(ROOT / "examples" / "plot_super_resolution.py", tmp_path)
    places = {"MPLBACKEND": "Agg", "PYTHONPATH": str(Path(gp.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "plot_super_resolution.py"],
        cwd=tmp_path,
        env=os.environ | places,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(re.findall(r"recovered +median error ([\d.]+)", ran.stdout)[0]) < 0.1


def test_packaged_weights_are_found_and_none_of_the_code_is_run(tmp_path, plt, monkeypatch, capsys):
    """The package is not needed, so a double stands for it: its file of weights is read, its code raises."""
    script = ROOT / "examples" / "plot_stranger_faces.py"
    network = run_alone(script)["untrained"](64)
    package = tmp_path / "gan_face_generate"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('code of the package was run')")
    torch.save({"netG_state_dict": network.state_dict()}, package / "weights.tar")
    monkeypatch.syspath_prepend(str(tmp_path))
    capsys.readouterr()
    run_alone(script)
    assert "gan-face-generate: found" in capsys.readouterr().out and plt.get_fignums()


def test_the_stand_in_keeps_the_contract(plt):
    """Its ReLUs have so many kinks that differences over wide steps are off by several percent."""
    network = run_alone(ROOT / "examples" / "plot_stranger_faces.py")["untrained"](4)
    generator = gp.Generator(network, (100, 1, 1), (3, 64, 64), signal_range=(0, 1))
    for seed in range(3):
        report = gp.checks.check_generator(generator, seed=seed)
        assert report.ok, str(report)


def test_there_are_enough_and_the_style_is_kept():
    assert len(SCRIPTS) >= 10
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        head = text.split('"""')[1].strip().splitlines()
        assert set(head[1]) == {"="} and len(head[1]) >= len(head[0]), f"{script.name} has no title"
        assert text.endswith("plt.show()\n"), f"{script.name} does not show its figures to those who run it"
