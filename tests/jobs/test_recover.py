"""The job of recovering, as a library: what it writes, and that every setting has its effect."""

import errno
import inspect
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from PIL import Image

from genprior import samples
from genprior.cli.recover import Denoise
from genprior.files.arrays import NpyArray
from genprior.jobs.recover import recover
from genprior.loop.solve import solve
from genprior.models.foreign import open_generator
from genprior.operators.parse import parse_operator
from genprior.prior import WIDEN
from genprior.solvers.registry import SOLVERS, solver_named
from tests.jobs.records import recorded


def result_of(job):
    recover(job)
    return json.loads((job.out / "result.json").read_text())


def signals(job, name="made.npy"):
    return np.load(job.out / "recovered" / name)


def test_recovers_what_was_measured(job, made):
    done = job(restarts=4, steps=150)
    outcome = recover(done)
    truth = np.load(made)
    error = np.linalg.norm((signals(done) - truth).reshape(7, -1), axis=1) / np.linalg.norm(
        truth.reshape(7, -1), axis=1
    )
    assert np.median(error) < 1e-3
    document = json.loads(outcome.result.read_text())
    assert [item["name"] for item in document["items"]] == [f"made.npy[{i}]" for i in range(7)]
    assert np.allclose([item["error"] for item in document["items"]], error, atol=1e-6)
    for item in document["items"]:
        assert item["output"] == "recovered/made.npy" and item["status"] and item["advice"] and item["steps"] > 0
        assert item["residual"] < 0.5 and item["objective"] >= 0 and item["psnr"] > 0
    summary = document["summary"]
    assert summary["items"] == summary["recovered"] == 7 and summary["plan"].startswith("Auto")
    assert summary["median_error"] == pytest.approx(np.median(error), abs=1e-6)
    text = outcome.report.read_text()
    assert (
        text.count("data:image/png;base64,") == 3
        and "original" in text
        and "http" not in text.replace("http-equiv", "")
    )


def closed_form(model, operator, y):
    """argmin_z |A (W z + b) - y|^2 by numpy, as signals."""
    layer = open_generator(f"{model}:linear").module[0]
    W, b = layer.weight.double().numpy(), layer.bias.double().numpy()
    A = operator.dense().double().numpy()
    z = np.linalg.lstsq(A @ W, (y - A @ b).T, rcond=None)[0]
    return (W @ z).T + b


def test_measurements_meet_the_closed_form(job, model, tmp_path):
    """Given measurements, not simulated: least squares over the range of an affine generator."""
    operator = parse_operator("gaussian:m=24,seed=1", (1, 8, 8))
    y = np.random.default_rng(3).standard_normal((5, 24)).astype(np.float32)
    np.save(tmp_path / "y.npy", y)
    done = job("linear", inputs=(str(tmp_path / "y.npy"),), simulate=False, steps=300)
    document = result_of(done)
    expected = closed_form(model, operator, y)
    assert np.allclose(signals(done, "y.npy").reshape(5, -1), expected, atol=5e-3)
    fit = np.linalg.norm(expected @ operator.dense().double().numpy().T - y, axis=1) / np.linalg.norm(y, axis=1)
    assert np.allclose([item["residual"] for item in document["items"]], fit, atol=1e-3)
    assert all("error" not in item for item in document["items"])


@pytest.mark.parametrize(("loss", "norm"), [("l1", 1), ("linf", "inf")])
def test_norms_meet_a_convex_solver(job, model, tmp_path, loss, norm):
    layer = open_generator(f"{model}:linear").module[0]
    W, b = layer.weight.double().numpy(), layer.bias.double().numpy()
    y = np.random.default_rng(4).standard_normal(64)
    np.save(tmp_path / "noisy.npy", y.reshape(1, 1, 8, 8).astype(np.float32))
    done = job(
        "linear", inputs=(str(tmp_path / "noisy.npy"),), operator="identity", loss=loss, simulate=False, steps=600
    )
    objective = result_of(done)["items"][0]["objective"]
    z = cp.Variable(3)
    residual = W @ z + b - y
    best = cp.Problem(cp.Minimize(cp.norm(residual, norm) + 0.01 / 64 * cp.sum_squares(residual))).solve(
        solver=cp.CLARABEL
    )
    assert best * 0.9999 <= objective <= best * 1.02
    wrong = {"l1": "linf", "linf": "l1"}[loss]
    other = job("linear", inputs=done.inputs, operator="identity", loss=wrong, simulate=False, out=tmp_path / "other")
    recover(other)
    assert not np.allclose(signals(done, "noisy.npy"), signals(other, "noisy.npy"), atol=0.02)


def noisy_measurements(tmp_path, made, sigma=0.2):
    operator = parse_operator("gaussian:m=24,seed=1", (1, 8, 8))
    y = operator(torch.from_numpy(np.load(made)))
    y = y + sigma * torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    np.save(tmp_path / "y.npy", y.numpy())
    return operator, y.double().numpy(), (str(tmp_path / "y.npy"),)


def test_a_noise_level_weighs_the_prior(job, model, tmp_path, made):
    sigma = 0.2
    operator, y, inputs = noisy_measurements(tmp_path, made, sigma)
    done = job("linear", inputs=inputs, simulate=False, noise_level=sigma, steps=200)
    document, G = result_of(done), open_generator(f"{model}:linear")
    layer, A = G.module[0], operator.dense().double().numpy()
    W, b = A @ layer.weight.detach().double().numpy() / sigma, (y - A @ layer.bias.detach().double().numpy()) / sigma
    z = np.linalg.solve(W.T @ W + np.eye(W.shape[1]) / (WIDEN * G.latent.spread) ** 2, W.T @ b.T).T
    expected = z @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    assert np.allclose(signals(done, "y.npy").reshape(len(y), -1), expected, atol=2e-3)
    misfit = np.square((y - signals(done, "y.npy").reshape(len(y), -1) @ A.T) / sigma).mean(axis=1)
    assert np.allclose([item["misfit"] for item in document["items"]], misfit, rtol=1e-3)
    assert document["summary"]["median_misfit"] == pytest.approx(np.median(misfit), rel=1e-3)
    assert document["summary"]["median_noise_estimate"] is None
    text = (done.out / "report.html").read_text()
    assert "median misfit" in text and "noise level, given" in text


def test_a_noise_level_that_is_not_given_is_estimated(job, tmp_path, made):
    _, y, inputs = noisy_measurements(tmp_path, made)
    done = job("linear", inputs=inputs, simulate=False, steps=200)
    document = result_of(done)
    found = [item["noise_estimate"] for item in document["items"]]
    residual = np.array([item["residual"] for item in document["items"]]) * np.linalg.norm(y, axis=1)
    assert np.allclose(found, residual / np.sqrt(24 - 3), rtol=1e-3)
    assert document["summary"]["median_misfit"] is None
    assert "what the generator cannot make counts too" in (done.out / "report.html").read_text()
    few = result_of(job("linear", out=tmp_path / "few", operator="gaussian:m=6,seed=1", simulate=True))
    assert few["summary"]["median_noise_estimate"] is None and "noise_estimate" not in few["items"][0]


def test_a_simulation_adds_the_noise_level(job, tmp_path):
    one = result_of(job("linear", noise_level=0.3))
    two = result_of(job("linear", noise=0.3, noise_level=0.3, out=tmp_path / "two"))
    assert [item["noise"] for item in one["items"]] == [item["noise"] for item in two["items"]]
    assert one["items"][0]["residual"] == two["items"][0]["residual"] > 0.01


def test_latent_ball_and_box(job, model, tmp_path, made):
    generator = open_generator(f"{model}:build")
    free, held = job(), job(out=tmp_path / "held", latent_ball=0.5)
    assert result_of(free)["summary"]["median_residual"] < result_of(held)["summary"]["median_residual"]
    z = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    inside = generator(0.5 * z / z.norm(dim=1, keepdim=True).clamp_min(1)).flatten(1).detach()
    distance = torch.cdist(torch.from_numpy(signals(held)).flatten(1), inside).amin(1)
    assert float(distance.max()) < 0.15, "what is held is near to what the ball can give"
    boxed = job("linear", box=(0.0, 1.0), operator="identity", out=tmp_path / "boxed")
    wild = job("linear", operator="identity", out=tmp_path / "wild")
    assert np.abs(result_of(wild)["summary"]["median_residual"] - result_of(boxed)["summary"]["median_residual"]) > 1e-3
    outside = [np.linalg.norm(signals(each) - signals(each).clip(0, 1)) for each in (boxed, wild)]
    assert outside[0] < 0.99 * outside[1], "three latent numbers cannot do much"


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_by_name(job, name, tmp_path):
    done = job(solver=name, steps=8)
    document = result_of(done)
    assert document["summary"]["recovered"] == 7
    assert solver_named(SOLVERS[name].type.__name__) == solver_named(name) == SOLVERS[name]()


def test_options_have_an_effect(job, tmp_path):
    base = job(steps=2)
    recover(base)
    changes = {
        "seed": {"seed": 3},
        "noise": {"noise": 0.3},
        "restarts": {"restarts": 3},
        "steps": {"steps": 4},
        "solver": {"solver": "adam"},
        "operator": {"operator": "gaussian:m=20,seed=1"},
    }
    for name, change in changes.items():
        changed = job(**{"steps": 2, **change}, out=tmp_path / name)
        recover(changed)
        assert not np.allclose(signals(changed), signals(base), atol=1e-7), name


def test_noise_belongs_to_the_item_not_the_batch(job, tmp_path):
    whole, split = job(noise=0.2, steps=2), job(noise=0.2, steps=2, batch_size=3, out=tmp_path / "split")
    one, two = result_of(whole), result_of(split)
    assert one["items"][0]["residual"] != one["items"][1]["residual"]
    from genprior.jobs.posed import simulate

    operator = parse_operator("gaussian:m=24", (1, 8, 8))
    x = torch.rand(4, 1, 8, 8)
    together = simulate(operator, x, 0.2, 0, range(4))
    apart = torch.cat([simulate(operator, x[i : i + 1], 0.2, 0, [i]) for i in range(4)])
    assert torch.allclose(together, apart, atol=1e-6) and len(two["items"]) == 7
    drawn = [together - operator(x), simulate(operator, x, 0.2, 1, range(4)) - operator(x)]
    assert not torch.allclose(drawn[0][0], drawn[0][1], atol=0.01), "items have noise of their own"
    assert not torch.allclose(drawn[0], drawn[1], atol=0.01), "another seed, another noise"
    spread = (simulate(operator, x[:1].expand(400, -1, -1, -1), 0.2, 0, range(400)) - operator(x[:1])).std()
    assert float(spread) == pytest.approx(0.2, rel=0.05)


def test_time_is_for_the_whole_job(job, tmp_path, monkeypatch):
    looks = itertools.count()  # every look at the clock takes time, and nothing else
    monkeypatch.setattr(time, "perf_counter", lambda: 0.005 * next(looks))
    np.save(tmp_path / "digits.npy", samples.digits(7)[0].numpy())
    document = result_of(
        job(  # Auto may have converged by then, on a fast machine
            generator="mnist", inputs=(str(tmp_path / "digits.npy"),), time=0.6, steps=None, batch_size=2, solver="adam"
        )
    )
    assert document["summary"]["status"] == {"OUT_OF_TIME": 7}
    assert 0.55 < document["summary"]["seconds"] < 2.0


def test_patience_ends_what_makes_no_progress(job, tmp_path):
    """Noise leaves a residual: once the fit is found, steps of a fixed length make nothing better by a share."""
    patient = result_of(job(solver="adam", noise=0.5, steps=300, settle_after=0, out=tmp_path / "patient"))
    hasty = result_of(job(solver="adam", noise=0.5, steps=300, patience=3, settle_after=0, out=tmp_path / "hasty"))
    flat = {"STALLED", "SETTLED"}
    assert not flat & set(patient["summary"]["status"]) and flat & set(hasty["summary"]["status"])
    assert all(item["steps"] < 300 for item in hasty["items"] if item["status"] in flat)


def test_patience_is_that_of_solve_by_default(job):
    default = inspect.signature(solve).parameters["patience"].default
    assert job().patience == default == Denoise(inputs=(Path("x"),), out=Path("o")).job("identity").patience


def test_classes_one_per_item(job, model, tmp_path):
    generator = open_generator(f"{model}:Conditional", label=0)
    labels = np.array([2, 0, 3, 2, 0])
    z = generator.sample_latent(5, seed=1)
    with torch.no_grad():
        pictures = generator.module.module(z, torch.from_numpy(labels))
    np.save(tmp_path / "x.npy", pictures.numpy())
    np.save(tmp_path / "labels.npy", labels)
    files = {"inputs": (str(tmp_path / "x.npy"),), "restarts": 4, "steps": 150, "batch_size": 3}
    right = job("Conditional", source={"labels": str(tmp_path / "labels.npy")}, **files)
    wrong = job("Conditional", source={"label": 1}, out=tmp_path / "wrong", **files)
    errors = [item["error"] for item in result_of(right)["items"]]
    assert max(errors) < 1e-2, "each with its own class"
    assert min(item["error"] for item in result_of(wrong)["items"]) > 0.05
    np.save(tmp_path / "labels.npy", labels[:4])
    with pytest.raises(ValueError, match=r"holds 4 labels for 5 items"):
        recover(job("Conditional", source={"labels": str(tmp_path / "labels.npy")}, out=tmp_path / "new", **files))
    np.save(tmp_path / "labels.npy", [0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"does not take the class label 4: .*IndexError"):
        recover(job("Conditional", source={"labels": str(tmp_path / "labels.npy")}, out=tmp_path / "new", **files))
    assert not (tmp_path / "new").exists(), "refused before any work"


def test_fourier_measurements_are_complex(job, model, made, tmp_path):
    np.save(tmp_path / "lines.npy", np.array([0, 1, 2, 6, 7]))
    words = f"fourier:{tmp_path / 'lines.npy'}"
    operator = parse_operator(words, (1, 8, 8))
    np.save(tmp_path / "y.npy", operator(torch.from_numpy(np.load(made))).numpy())
    done = job(operator=words, inputs=(str(tmp_path / "y.npy"),), simulate=False, restarts=3, steps=100)
    recover(done)
    assert np.median(np.abs(signals(done, "y.npy") - np.load(made)).max((1, 2, 3))) < 0.01
    simulated = job(operator=words, noise=0.01, steps=3, out=tmp_path / "simulated")
    assert result_of(simulated)["summary"]["recovered"] == 7


def test_pictures_in_pictures_out(job, made, tmp_path):
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for number, picture in enumerate(np.load(made)):
        name = f"deep/{number}.png" if number % 2 else f"{number}.png"
        Image.fromarray((picture[0] * 255).round().astype(np.uint8)).save(folder / name)
    done = job(inputs=(str(folder),), operator="downsample:2", restarts=3, batch_size=3)
    document = result_of(done)
    assert sorted(str(p.relative_to(done.out / "recovered")) for p in (done.out / "recovered").rglob("*.png")) == [
        "0.png", "2.png", "4.png", "6.png", "deep/1.png", "deep/3.png", "deep/5.png"
    ]  # fmt: skip
    for item in document["items"]:
        with Image.open(done.out / item["output"]) as image:
            values = np.asarray(image) / 255
        assert np.abs(values - np.load(made)[int(item["name"][-5]), 0]).max() < 0.2 + item["error"] * 3


def test_unreadable_items_do_not_stop_the_others(job, made, tmp_path):
    values = np.load(made)
    values[2] = np.nan
    np.save(made, values)
    outcome = recover(job(steps=3))
    document = json.loads(outcome.result.read_text())
    assert outcome.recovered == 6 and document["items"][2]["status"] == "UNREADABLE"
    assert "NaN" in document["items"][2]["advice"] and "NaN" in outcome.report.read_text()
    assert np.isnan(signals(job())[2]).all() and np.isfinite(signals(job())[3]).all()


def test_going_on_changes_nothing(job):
    done = job(batch_size=2, steps=5)
    first = result_of(done)
    before = signals(done).copy()
    calls = []
    recover(done, lambda *told: calls.append(told))
    assert result_of(done) == first and np.array_equal(signals(done), before)
    assert not any("step" in note for _, _, note in calls), "nothing is solved again"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "downsample:2"}, "operator was gaussian:m=24,seed=1, now downsample:2"),
        ({"seed": 3}, "seed was 0, now 3"),
        ({"loss": "l1", "operator": "identity"}, "operator was"),
    ],
)
def test_another_job_in_the_same_folder_is_refused(job, change, message):
    done = job(steps=3)
    recover(done)
    stored = signals(done).copy()
    with pytest.raises(ValueError, match=rf"holds another job .*{message}.*another `out`"):
        recover(job(**{"steps": 3, **change}))
    assert np.array_equal(signals(done), stored)


def test_changed_inputs_and_models_are_noticed(job, made, model):
    recover(job(steps=3))
    np.save(made, np.load(made)[:5])
    with pytest.raises(ValueError, match=r"the content of the inputs has changed"):
        recover(job(steps=3))
    np.save(made, np.load(made))
    with open(model, "a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    with pytest.raises(ValueError, match=r"content of the generator has changed"):
        recover(job(steps=3))


def test_places_that_were_not_measured_may_hold_anything(job, made, tmp_path):
    known = np.ones((8, 8), np.float32)
    known[:3] = 0
    np.save(tmp_path / "known.npy", known)
    values = np.load(made)
    for name, rubbish in (("zero", 0.0), ("nan", np.nan), ("mark", -9999.0)):
        values[:, :, :3] = rubbish
        np.save(tmp_path / f"{name}.npy", values)
        changes = {"inputs": (str(tmp_path / f"{name}.npy"),), "operator": f"mask:{tmp_path / 'known.npy'}"}
        document = result_of(job(simulate=False, steps=20, out=tmp_path / name, **changes))
        assert document["summary"]["recovered"] == 7
        found = signals(job(out=tmp_path / name), f"{name}.npy")
        assert np.array_equal(found, signals(job(out=tmp_path / "zero"), "zero.npy"))


def test_measurements_of_a_strong_operator(job, made, tmp_path):
    np.save(tmp_path / "kernel.npy", np.ones((5, 5), np.float32))
    words = f"blur:{tmp_path / 'kernel.npy'}"
    y = parse_operator(words, (1, 8, 8))(torch.from_numpy(np.load(made)))
    assert float(y.max()) > 8
    np.save(tmp_path / "y.npy", y.numpy())
    done = job(operator=words, inputs=(str(tmp_path / "y.npy"),), simulate=False, steps=3)
    assert recover(done).recovered == 7


def test_a_drive_that_comes_back(job, made, monkeypatch):
    """Nothing is recorded of what could not be read for a while."""
    whole = NpyArray.rows

    def gone(self, start, stop):
        if start >= 4:
            raise OSError(errno.EIO, "Input/output error")
        return whole(self, start, stop)

    done = job(batch_size=2, steps=3)
    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"Input/output error: '.*made\.npy'"):
        patch.setattr(NpyArray, "rows", gone)
        recover(done)
    assert recorded(done.out) == [0, 1] and not (done.out / "result.json").exists()
    assert recover(done).recovered == 7


def test_infinite_bounds_are_sound_json(job):
    done = job(box=(0.0, math.inf), steps=3)
    recover(done)
    for path in (done.out / "result.json", done.out / ".job" / "job.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    assert json.loads((done.out / "result.json").read_text())["asked"]["box"] == [0.0, "inf"]
    recover(job(box=(0.0, math.inf), steps=3))
    with pytest.raises(ValueError, match=r"holds another job .box was \[0\.0, 'inf'\], now \[0\.0, 2\.0\]"):
        recover(job(box=(0.0, 2.0), steps=3))


def test_other_rounding_is_no_other_operator(job, monkeypatch):
    """As on another device."""
    recover(job(steps=3))

    def other(text, shape, **options):
        operator = parse_operator(text, shape, **options)
        return operator._changed(lambda t: t * (1 + 1e-7))

    monkeypatch.setattr("genprior.jobs.work.parse_operator", other)
    recover(job(steps=3))


def test_changed_files_of_the_operator_are_noticed(job, tmp_path):
    mask = np.ones((8, 8), np.float32)
    np.save(tmp_path / "known.npy", mask)
    words = f"downsample:2 @ mask:{tmp_path / 'known.npy'}"
    recover(job(operator=words, steps=3))
    recover(job(operator=words, steps=3))
    mask[0] = 0
    np.save(tmp_path / "known.npy", mask)
    with pytest.raises(ValueError, match=r"the content of the operator has changed"):
        recover(job(operator=words, steps=3))


def test_where_there_are_no_locks(job, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def fail(file, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    outcome = recover(job(steps=2))
    assert outcome.recovered == 7
    assert any("cannot be locked (No locks available): do not start a second process" in note for note in outcome.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_text(job, made, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    names = [os.fsdecode(b"a\xff.png"), "b" * 251 + ".png"]
    for name, picture in zip(names, np.load(made), strict=False):
        Image.fromarray((picture[0] * 255).round().astype(np.uint8)).save(folder / name)
    (folder / os.fsdecode(b"c\xfe.png")).write_bytes(b"no picture")
    done = job(inputs=(str(folder),), operator="downsample:2", steps=3, skip=True)
    outcome = recover(done)
    assert outcome.recovered == 2 and sorted(os.listdir(done.out / "recovered")) == sorted(names)
    text = outcome.report.read_text(encoding="utf-8")
    assert "a\\udcff.png" in text and "c\\udcfe.png cannot be read" in text
    assert solved_again(done) == 0


def solved_again(job):
    told = []
    recover(job, lambda done, total, note: told.append(note) if "reading" in note else None)
    return len(told)


def test_two_at_once_are_refused(job):
    from genprior.jobs.ledger import alone

    with alone(job().out), pytest.raises(ValueError, match=r"another process is working in"):
        recover(job())


def test_ctrl_c_keeps_what_is_done(job):
    def press(done, total, note):
        if done >= 4 and "step" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(job(batch_size=2), press)
    assert recorded(job().out) == [0, 1]
    assert result_of(job(batch_size=2))["summary"]["recovered"] == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "l3"}, "loss must be one of l2, l1, linf"),
        ({"noise": -1.0}, "noise must be a finite number of at least 0"),
        ({"noise": 0.1, "simulate": False}, "`noise` is only used in simulations"),
        ({"noise_level": 0.0}, "noise_level must be a finite number above 0"),
        ({"noise_level": 0.1, "loss": "linf"}, "noise_level works only with the loss l2, got 'linf'"),
        ({"box": (1.0, 0.0)}, "box must be a lower and an upper bound"),
        ({"box": (0.0, 1.0), "loss": "l1"}, "box works only with the loss l2"),
        ({"latent_ball": 0.0}, "latent_ball must be a finite number above 0"),
        ({"time": 0.0}, "time must be a finite number above 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"pictures": -1}, "pictures must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"solver": "newton"}, "no solver 'newton': give one of auto, exact-admm"),
        ({"source": {"label": 1, "labels": "x.npy"}}, "`label` and `labels` were both given"),
    ],
)
def test_settings_are_checked_at_once(job, change, message):
    with pytest.raises(ValueError, match=message):
        job(**change)


def test_norms_need_whole_pictures(job):
    with pytest.raises(ValueError, match=r"loss l1 compares whole images.*genprior denoise"):
        recover(job(loss="l1"))
    assert not job().out.exists(), "nothing was begun"


SCRIPT = """
import os, pathlib, resource, signal, sys
from genprior.jobs.recover import recover
from genprior.jobs.settings import Recovery, Source
model, inputs, out, kill = sys.argv[1:]
peaks = []

def told(done, total, note):
    if int(kill) and done >= int(kill) and note != "opening":
        os.kill(os.getpid(), signal.SIGKILL)
    if "reading" in note:
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

recover(Recovery(inputs=(inputs,), out=pathlib.Path(out), source=Source(generator=model), operator="downsample:2",
        simulate=True, steps=2, batch_size=8), told)
print(peaks[-1] - peaks[3])
"""


def run(*words):
    return subprocess.run([sys.executable, "-c", SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)


def test_killed_and_started_again_with_flat_memory(model, tmp_path):
    """Pictures and rows of an array; killed, gone on, everything exactly once; memory does not grow with the batches."""
    random = np.random.default_rng(0)
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(50):
        Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / f"{number:03d}.png")
    np.save(folder / "rows.npy", random.random((200, 8, 8), dtype=np.float32))
    assert run(f"{model}:build", folder, out, 90).returncode == -9
    done = len(recorded(out))
    assert 11 <= done <= 12 and not (out / "result.json").exists() and not (out / "recovered" / "rows.npy").exists()
    log = out / ".job" / "records-000000.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:300])  # as a kill in a write leaves it
    (out / "recovered" / ".007.png.1-2.part").write_bytes(b"half")
    stamps = {path.name: path.stat().st_mtime_ns for path in (out / "recovered").glob("*.png")}
    finished = run(f"{model}:build", folder, out, 0)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) < 8_000, "kilobytes that the last batches needed more than the first"
    items = json.loads((out / "result.json").read_text())["items"]
    names = [f"{number:03d}.png" for number in range(50)] + [f"rows.npy[{i}]" for i in range(200)]
    assert [item["name"] for item in items] == names
    assert sorted(path.name for path in (out / "recovered").iterdir()) == sorted([*names[:50], "rows.npy"])
    assert all((out / "recovered" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items()), "done once"
    rows = np.load(out / "recovered" / "rows.npy")
    assert rows.shape == (200, 8, 8) and np.isfinite(rows).all() and (np.ptp(rows.reshape(200, -1), axis=1) > 0).all()
    assert not list(out.rglob(".*.part")) and not list((out / ".job").glob("rows-*"))


def test_numbers_of_the_generator_that_come_from_elsewhere(job, model, tmp_path):
    """The code is the same and names no weights; the numbers are others."""
    (tmp_path / "seed.txt").write_text("0")
    code = f"""
from pathlib import Path


def read():
    torch.manual_seed(int(Path({str(tmp_path / "seed.txt")!r}).read_text()))
    return nn.Sequential(nn.Linear(3, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
"""
    Path(model).write_text(Path(model).read_text() + code)
    recover(job("read", steps=1))
    recover(job("read", steps=1))
    (tmp_path / "seed.txt").write_text("1")
    with pytest.raises(ValueError, match=r"content of the generator has changed"):
        recover(job("read", steps=1))
