"""``genprior reproduce ... --quick``, one experiment at a time, its numbers within wide bounds: it cannot rot."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from genprior import cli
from genprior.lab.reproduce import EXPERIMENTS
from genprior.lab.reproduce.methods import ADAM, AUTO, EXACT, EXACT_ADAM, GD

FIGURES = {
    "compressive-sensing": {"sensing-mnist", "sensing-celeba", "sensing-sweep", "sensing-real"},
    "linf-denoising": {"denoising", "denoising-duals"},
    "defence": {"defence", "defence-known"},
    "tuning": {"tuning"},
    "plateau": {"plateau"},
}
PAPERS = {
    "compressive-sensing": {"sensing-mnist-exact", "sensing-mnist-linearized"}
    | {"sensing-celeba-exact", "sensing-celeba-linearized"},
    "linf-denoising": {"denoising-gd-linf", "denoising-adam", "denoising-linf-exact"},
    "defence": {"defence-restores", "defence-linf-first"},
    "tuning": {"tuning-step"},
    "plateau": {"plateau-gap", "plateau-rate", "plateau-slower"},
}
"""Claims of the paper; all others are ours, and not counted."""


def quick(name, folder, capsys):
    assert cli.main(["reproduce", name, "--quick", "--out", str(folder), "--json", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    document = json.loads(shown.out)
    assert document == json.loads((folder / "results.json").read_text())
    assert document["claims"] and {claim["experiment"] for claim in document["claims"]} == {name}
    assert {claim["verdict"] for claim in document["claims"]} <= {
        "holds",
        "holds partly",
        "does not hold",
        "undecided",
        "not judged",
    }
    assert {claim["key"] for claim in document["claims"] if not claim["ours"]} == PAPERS[name]
    check_files(name, folder)
    return document


def check_files(name, folder):
    """Figures in both kinds, a page that needs nothing else, a document whose links lead somewhere, traces."""
    for figure in FIGURES[name]:
        assert (folder / "reproduction" / f"{figure}.png").stat().st_size > 10_000
        assert (folder / "reproduction" / f"{figure}.svg").stat().st_size > 10_000
    page = (folder / "index.html").read_text()
    assert page.count("<svg") == len(FIGURES[name]) and "A quick run" in page
    assert all(address.startswith(("data:", "#")) for address in re.findall(r"(?:src|href)=\"([^\"]{0,30})", page))
    text = (folder / "reproduction.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(FIGURES[name]) and all((folder / link).is_file() for link in links)
    if name != "tuning":
        assert list((folder / "traces").glob("*.csv"))


def claim(document, key):
    return next(one for one in document["claims"] if one["key"] == key)


def medians(document, field, name="objective"):
    return {
        part.rpartition(".")[2]: numbers[name]["median"]
        for part, numbers in document["parts"].items()
        if part.startswith(f"{field}.run.")
    }


EVERYWHERE = {GD, ADAM, "projected", "linearized", EXACT, AUTO}


def test_compressive_sensing(tmp_path, capsys):
    document = quick("compressive-sensing", tmp_path, capsys)
    for m in (156, 392):
        ends = medians(document, f"compressive-sensing.mnist.range.m{m}")
        assert set(ends) == EVERYWHERE | ({EXACT_ADAM} if m == 392 else set())
        assert ends[EXACT] < 1.5 * ends[GD] and ends[AUTO] < ends[GD] and ends[ADAM] < 60
        errors = medians(document, f"compressive-sensing.mnist.range.m{m}", "error")
        assert 0.01 < errors[AUTO] < 0.95 and errors[EXACT] < 0.95
    for field in ("celeba.range.m614", "mnist.real.m392"):
        assert set(medians(document, f"compressive-sensing.{field}")) == EVERYWHERE
    passes = claim(document, "sensing-cost")["numbers"]["passes"]
    assert passes[EXACT] == pytest.approx([1, 1]) and passes[GD] == pytest.approx([1, 1])
    budgets = {len(numbers["scores"]) for name, numbers in document["parts"].items() if ".tune." in name}
    assert budgets == {2}, "the same for everybody"
    lines = (tmp_path / "traces" / f"compressive-sensing.mnist.range.m392.run.{EXACT}.csv").read_text().splitlines()
    assert lines[0].startswith("step,seconds,passes,objective_q25,objective_median") and len(lines) == 32


def test_denoising(tmp_path, capsys):
    document = quick("linf-denoising", tmp_path, capsys)
    stuck = claim(document, "denoising-gd-linf")["numbers"]
    assert stuck["end"] > 0.9 * stuck["start"] > 0.8
    assert claim(document, "denoising-adam")["numbers"]["end"] < 0.95
    healthy = claim(document, "denoising-healthy")["numbers"]
    assert healthy["share_active"]["linf-sign"] > 0.9 and 0 < max(healthy["share_of_bound"].values()) <= 1.001
    lines = (tmp_path / "traces" / f"linf-denoising.linf.run.{EXACT}.csv").read_text().splitlines()
    names, *rows = (line.split(",") for line in lines)
    assert names[-6:] == [f"{name}_{part}" for name in ("w_from_y", "dual") for part in ("q25", "median", "q75")]
    assert all("" not in row for row in rows)
    ends = medians(document, "linf-denoising.linf", "linf")
    assert ends[AUTO] < 0.8 and ends[EXACT] < 0.99
    assert medians(document, "linf-denoising.l2", "error")[AUTO] < 0.8


def test_defence(tmp_path, capsys):
    document = quick("defence", tmp_path, capsys)
    numbers = claim(document, "defence-restores")["numbers"]
    assert numbers["clean"] > 0.95 and numbers["attacked"] < 0.05, "undefended, at the paper's size"
    assert numbers["defended"][ADAM] > 0.3 and numbers["defended"][EXACT] > 0.2
    for key in (GD, ADAM, EXACT):
        right = document["parts"][f"defence.run.{key}.0"]["right"]
        assert len(right) == len(document["parts"][f"defence.run.{key}.0"]["passes"]) and max(right) <= 10
    for kind in ("bpda", "latent"):
        assert 0 <= document["parts"][f"defence.{kind}.{EXACT_ADAM}"]["defended_accuracy"] <= 1


def test_tuning(tmp_path, capsys):
    document = quick("tuning", tmp_path, capsys)
    grid = document["parts"]["tuning.mnist.m313"]
    assert grid["chosen"] in (0.01, 0.1) and grid["mean_last"][0] > 1.2 * min(grid["mean_last"])
    assert min(grid["mean_last"]) < 0.7 * grid["start_objective"]
    assert all(best <= last * 1.0001 for best, last in zip(grid["mean_best"], grid["mean_last"], strict=True))
    assert grid["mean_last"][-1] > 1.05 * grid["mean_best"][-1], "the largest step overshoots"


def test_plateau(tmp_path, capsys):
    document = quick("plateau", tmp_path, capsys)
    slopes = claim(document, "plateau-gap")["numbers"]["slope"]
    assert set(slopes) == {"gap", "distance"} and all(-1.2 < slope < -0.8 for slope in slopes.values())
    assert -2.5 < claim(document, "plateau-rate")["numbers"]["slope"] < -1.5
    gaps = claim(document, "plateau-duals")["numbers"]["gap"]
    assert gaps["constant"] < 1e-3 < gaps["paper, small"]
    assert claim(document, "plateau-bounded")["verdict"] == "holds"
    assert np.all(np.diff(list(claim(document, "plateau-slower")["numbers"]["steps"].values())) > 0)


def test_all_is_every_experiment():
    assert cli.COMMANDS["reproduce", "all"].experiments == ()
    named = {path[1] for path in cli.COMMANDS if path[0] == "reproduce"} - {"all"}
    assert named == set(EXPERIMENTS) == set(FIGURES)


def test_other_settings_and_bad_values(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("genprior.lab.reproduce.run.run_parts", lambda *_: pytest.fail("nothing is to be run"))
    words = ["reproduce", "plateau", "--quick", "--out", str(tmp_path)]
    (tmp_path / "settings.json").write_text(json.dumps({"seed": 3}))
    assert cli.main(words) == 1
    assert "holds a run with other settings" in capsys.readouterr().err
    assert cli.main([*words, "--seed", "-1"]) == 1
    assert "seed must be at least 0" in capsys.readouterr().err
    assert cli.main([*words, "--device", "abacus"]) == 1
    assert "device 'abacus' cannot be used here" in capsys.readouterr().err
