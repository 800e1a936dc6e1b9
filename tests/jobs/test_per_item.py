"""An item's result is its own: neither its batch nor its neighbours count, nor what stands where nothing was measured."""

import json

import numpy as np
import pytest
import torch

from genprior import _batch
from genprior.jobs.posed import relative_residual, simulate
from genprior.jobs.recover import recover
from genprior.loop.starts import starts
from genprior.models.foreign import open_generator
from genprior.operators.parse import parse_operator


def result_of(job):
    recover(job)
    return json.loads((job.out / "result.json").read_text())


def facts(document, name="objective"):
    return {item["name"]: item.get(name) for item in document["items"]}


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_size_of_batches_does_not_matter(job, tmp_path, restarts, monkeypatch):
    """But for the number of samples among which starts are chosen, which is the same here."""
    monkeypatch.setattr("genprior.loop.starts._PER_ITEM", 512)
    found = [
        facts(result_of(job(steps=6, restarts=restarts, batch_size=size, out=tmp_path / str(size))))
        for size in (7, 3, 1)
    ]
    values = np.array([list(each.values()) for each in found])
    assert np.allclose(values, values[0], rtol=1e-3), values
    assert len({f"{value:.3g}" for value in values[0]}) == 7, "items differ, so the comparison means something"


def test_a_bad_neighbour_does_not_matter(job, made, tmp_path):
    good = facts(result_of(job(steps=6)))
    values = np.load(made)
    values[0] = np.nan
    (tmp_path / "bad").mkdir()
    np.save(tmp_path / "bad" / "made.npy", values)
    bad = facts(result_of(job(steps=6, inputs=(str(tmp_path / "bad" / "made.npy"),), skip=True, out=tmp_path / "o")))
    assert bad.pop("made.npy[0]") is None
    assert bad == pytest.approx({name: good[name] for name in bad}, rel=1e-3, abs=1e-9)


def test_classes_of_neighbours_do_not_matter(job, tmp_path):
    found = []
    for name, classes in (("one", [2, 1, 1, 1, 0, 0, 2]), ("two", [0, 1, 1, 1, 3, 3, 2])):
        np.save(tmp_path / f"{name}.npy", np.array(classes))
        source = {"labels": str(tmp_path / f"{name}.npy")}
        found.append(facts(result_of(job("Conditional", source=source, steps=6, out=tmp_path / name))))
    same = [f"made.npy[{i}]" for i in (1, 2, 3, 6)]
    assert [found[0][name] for name in same] == pytest.approx([found[1][name] for name in same], rel=1e-3)


def test_starts_belong_to_seed_item_and_restart(model):
    generator = open_generator(f"{model}:build")
    drawn = starts(generator, 5, [3, 8], 4)
    assert drawn.shape == (2, 4, 3)
    assert torch.equal(starts(generator, 5, [8, 3], 2), drawn.flip(0)[:, :2]), "more restarts keep the first ones"
    assert len({tuple(row) for row in drawn.reshape(8, 3).tolist()}) == 8
    assert not torch.isclose(starts(generator, 6, [3, 8], 4), drawn).any()
    many = starts(generator, 0, range(2000), 1)
    assert abs(float(many.mean())) < 0.05 and float(many.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("words", ["mask:{mask}", "mask:{mask} @ blur:sigma=1", "fourier:{mask}"])
def test_what_was_not_measured_does_not_count(job, made, tmp_path, words):
    mask = np.random.default_rng(2).random((8, 8)) < 0.6
    np.save(tmp_path / "mask.npy", mask)
    words = words.format(mask=tmp_path / "mask.npy")
    operator = parse_operator(words, (1, 8, 8))
    y = operator(torch.from_numpy(np.load(made))).numpy()
    found = []
    for name, rubbish in (("clean", 0.0), ("dirty", 0.7)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "y.npy", np.where(mask, y, rubbish).astype(y.dtype))
        inputs = (str(tmp_path / name / "y.npy"),)
        done = job(operator=words, inputs=inputs, simulate=False, steps=30, restarts=2, out=tmp_path / f"o-{name}")
        document = result_of(done)
        found.append([facts(document), facts(document, "residual"), np.load(done.out / "recovered" / "y.npy")])
    assert found[0][0] == found[1][0] and found[0][1] == found[1][1] and np.array_equal(found[0][2], found[1][2])
    noisy = simulate(operator, torch.from_numpy(np.load(made)), 0.5, 0, range(7)).numpy()
    assert not noisy[np.broadcast_to(~mask, noisy.shape)].any(), "simulated noise only where something is measured"
    assert np.abs(noisy - y)[np.broadcast_to(mask, noisy.shape)].min() > 0


def test_residuals_of_nothing_are_unknown(model):
    operator = parse_operator("identity", (1, 8, 8))
    y = torch.zeros(2, 1, 8, 8)
    y[1] = 0.5
    residual = relative_residual(operator, torch.full_like(y, 0.25), y)
    assert residual.isnan().tolist() == [True, False] and float(residual[1]) == pytest.approx(0.5)
    assert float(_batch.norm(y)[0]) == 0


def test_a_black_picture(job, tmp_path):
    values = np.zeros((2, 1, 8, 8), np.float32)
    values[1] = 0.5
    np.save(tmp_path / "black.npy", values)
    done = job(operator="identity", inputs=(str(tmp_path / "black.npy"),), steps=3)
    document = result_of(done)
    black, grey = document["items"]
    assert black["residual"] is None and black["error"] is None and black["objective"] > 0
    assert grey["residual"] == document["summary"]["median_residual"]
    assert (
        "NaN" not in (done.out / "result.json").read_text() and "black.npy[0]" in (done.out / "report.html").read_text()
    )
