"""``genprior certify``: what it prints, what it writes, how it ends."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest
import torch

import genprior as gp
from genprior.theory.certificate_page import _loss, _measured, draw_run, draw_spectra, examination_numbers
from genprior.theory.certifying import own_signal_problem
from genprior.theory.examination import examine
from genprior.theory.loss_constants import GIVEN, LossConstants
from tests.test_cli import ends, flat
from tests.theory.networks import dense

BUILD = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 36), nn.Sigmoid(), nn.Unflatten(1, (1, 6, 6)))
"""
FAST = ["--points", "3", "--moves", "1", "--steps", "20", "--radius", "2"]


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(BUILD)
    return f"{path}:build"


def test_json_of_ones_own_generator(own, capfd):
    assert ends(["certify", "--generator", own, *FAST, "--json"]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    document = json.loads(shown.out)
    for name in ("iota", "kappa", "nu_G"):
        assert set(document[name]) >= {"sampled", "rigorous", "reason", "samples"}
    assert document["kappa"]["rigorous"] >= document["kappa"]["sampled"] > 0
    assert document["nu_G"]["rigorous"] >= document["nu_G"]["sampled"] > 0
    assert document["iota"]["sampled"] >= document["iota"]["rigorous"] > 0
    assert document["proposition1"] == {"holds": True, "not_checked": [], "failures": []}
    assert document["certificate"]["status"] == "none" and document["certificate"]["steps"] is None
    assert document["radius"] == 2.0 and document["measured"]["iterations"] == 20


def test_a_generator_in_float64_with_an_operator(own, tmp_path, capfd):
    path = tmp_path / "double.py"
    path.write_text(BUILD.replace("(1, 6, 6)))", "(1, 6, 6))).double()"))
    for operator in (["--operator", "gaussian", "--m", "20"], ["--operator", "downsample:2 @ blur:sigma=1"]):
        assert ends(["certify", "--generator", f"{path}:build", *operator, *FAST, "--json"]) == 0
        shown = capfd.readouterr()
        assert json.loads(shown.out)["loss"]["restricted"]["mu"] > 0 and shown.err == ""


def test_page_and_files(own, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "new" / "folder"
    assert ends(["certify", "--generator", own, "--operator", "gaussian", "--m", "20", *FAST, "--out", str(out)]) == 0
    shown = flat(capfd.readouterr().out)
    for words in ("sampled", "rigorous", "Theorem 1: none", "No rate is predicted", "NOT checked"):
        assert words in shown
    assert sorted(path.name for path in out.iterdir()) == ["certificate.html", "certificate.json"]
    document = json.loads((out / "certificate.json").read_text(encoding="utf-8"))
    assert document["operator"].startswith("Gaussian(20") and document["loss"]["mu"] == 0
    assert document["loss"]["restricted"]["mu"] > 0
    text = (out / "certificate.html").read_text(encoding="utf-8")
    assert text.count("<svg") == 2 and not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    for heading in ("Verdict", "Singular values", "Proposition 1", "assumptions", "Measured against the bound"):
        assert heading in text


def test_a_linear_generator_is_guaranteed_and_the_prediction_holds():
    torch.manual_seed(0)
    generator = gp.Generator(dense(torch.linalg.qr(torch.randn(9, 3).double())[0]), 3, 9)
    found = examine(generator, "line", radius=3.0, points=2, moves=0, steps=60)
    assert found.certificate.status == "guaranteed" and found.measured.certified
    assert len(found.measured.objective) == len(found.measured.bound) == 61
    assert (found.measured.objective <= found.measured.bound).all()
    problem, _ = own_signal_problem(generator, 3.0)
    solver = gp.LinearizedADMM.from_certificate(found.certificate)
    with torch.no_grad():
        state = solver.start(problem, found.certificate.z0)
        for value in found.measured.objective[:5].tolist():
            assert float(problem.objective(state.z)) == pytest.approx(value), "of iteration t, not of the one before"
            state = solver.step(problem, state)
    assert found.measured.rate < 1 and found.certificate.guarantee.eta > 0
    assert found.certificate.guarantee.setting.dual == 0, "the optimum is known"
    assert "optimum known" in " ".join(a.note for a in found.certificate.assumptions)
    assert "given" not in found.certificate.verdict()
    share = examination_numbers(found)["measured"]["largest_share_of_bound"]
    assert 0 < share <= 1 and share == float((found.measured.objective / found.measured.bound).max())
    shown = _measured(found)
    assert "or better" not in shown and f"at most {share:.2g} of the bound" in shown
    assert f"squared error contracts by 1 - {found.certificate.guarantee.eta:.3g} per iteration" in shown
    worse = dataclasses.replace(found.measured, objective=3 * found.measured.bound)
    assert "up to 3 times the bound" in _measured(dataclasses.replace(found, measured=worse))
    assert draw_run(found).axes and len(draw_spectra(found).axes) == 2


@pytest.mark.parametrize(
    ("proved", "source", "shown"),
    [
        (True, "mu = nu = 2 weight", "(proved: mu = nu = 2 weight)"),
        (True, GIVEN, f"({GIVEN})"),
        (False, "estimated at a few points", "(estimated at a few points)"),
    ],
)
def test_where_the_constants_of_the_loss_come_from(proved, source, shown):
    loss = LossConstants(1.0, 2.0, proved, source, 1.0, 2.0, "9 secants")
    assert shown in _loss(SimpleNamespace(certificate=SimpleNamespace(loss=loss)))


def test_mnist_meets_the_outside_names():
    """The bundled generator, with little sampling and without the proofs."""
    found = gp.theory.constants(gp.load_generator("mnist"), 10.0, points=1, moves=0, rigorous=False).to_dict()
    assert found["kappa"]["sampled"] > 1 and found["nu_G"]["sampled"] > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--generator", "nothing"], "there is no bundled generator 'nothing'"),
        (["--m", "5"], "no operator was given: add --operator gaussian"),
        (["--operator", "gaussian:m=5", "--m", "6"], "already has options"),
        (["--operator", "gauss"], "there is no operator 'gauss'"),
        (["--radius", "0"], "radius must be a finite number above 0"),
        (["--points", "0"], "points must be at least 1"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
    ],
)
def test_bad_values(words, message, capfd):
    assert ends(["certify", *words]) == 1
    shown = capfd.readouterr()
    assert shown.out == "" and message in flat(shown.err) and "Traceback" not in shown.err


def test_every_option_arrives(own, monkeypatch):
    given = {}

    def fake(generator, name, **options):
        given.update(options, name=name)
        raise ValueError("seen enough")

    monkeypatch.setattr("genprior.theory.examination.examine", fake)
    words = "--radius 4 --points 7 --moves 5 --steps 9 --seed 3 --operator gaussian --m 8 --json"
    assert ends(["certify", "--generator", own, *words.split()]) == 1
    del given["announce"]
    assert given.pop("operator").measurement_shape == (8,)
    assert given == {"name": own, "radius": 4.0, "points": 7, "moves": 5, "steps": 9, "seed": 3}
