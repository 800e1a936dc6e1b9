"""Defences on engines: the same files and records as in one process, whatever happens to the workers."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from genprior.engines import Blind, EngineError, Local, Place
from genprior.files import Items
from genprior.jobs.defend import defend_files
from genprior.jobs.settings import Classifier, Defence, Source
from tests.engines.test_recover import Backwards, _one_thread  # noqa: F401 - a fixture
from tests.jobs.conftest import CODE

CLASSIFIERS = """
import os, signal


def classifier():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


class Deadly(nn.Module):
    def forward(self, x):
        if bool((x > 0.9999).any()) and os.environ.get("SAFE") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return classifier()(x)


def drawn():
    torch.seed()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
"""


@pytest.fixture
def job(tmp_path):
    """Builds jobs on eleven images and one that is none; generator and classifier are in one file."""
    (tmp_path / "my_model.py").write_text(CODE + CLASSIFIERS)
    values = np.random.default_rng(0).uniform(0, 0.99, (12, 1, 8, 8)).astype(np.float32)
    values[5] = 7
    np.save(tmp_path / "in.npy", values)
    np.save(tmp_path / "labels.npy", np.arange(12) % 4)

    def build(out, classifier="classifier", **settings):
        place = f"{tmp_path / 'my_model.py'}"
        common = {"inputs": (str(tmp_path / "in.npy"),), "labels": tmp_path / "labels.npy", "skip": True}
        common |= {"steps": 4, "batch_size": 2, "restarts": 2, "pictures": 5}
        named = Classifier(classifier=f"{place}:{classifier}")
        source = Source(generator=f"{place}:build")
        return Defence(out=tmp_path / out, source=source, classifier=named, **common | settings)

    return build


def outcome_of(out):
    """Projections and records, without what a run took."""
    found = json.loads((out / "result.json").read_text())
    del found["run"], found["seconds"]
    return (out / "defended" / "in.npy").read_bytes(), found


def test_two_processes_write_what_one_does(job):
    one = defend_files(job("one"))
    two = defend_files(job("two"), engine=Local(2))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)
    assert one.images.keys() == {"given", "projected"} and len(one.images["given"]) == 5
    assert all(torch.equal(two.images[name], images) for name, images in one.images.items())
    assert two.run["engine"] == "2 processes on this machine" and two.run["lost_workers"] == 0
    assert one.run["engine"] == "this process" and one.numbers["unreadable"] == 1


class Apart(Backwards):
    """Its worker does not see the inputs, and says so."""

    def run(self, batches):
        solve = batches.work.open(Place(visible=False))
        assert {type(solve(batches.task(number, False))) for number in range(6)} == {Blind}
        return super().run(batches)


@pytest.mark.parametrize("engine", [Backwards(), Apart(visible=False)], ids=["visible", "apart"])
def test_workers_that_see_the_inputs_or_not_in_any_order(job, engine, monkeypatch):
    one = defend_files(job("one"))
    monkeypatch.setattr(Items, "missing", lambda *given: [Path("in.npy")])
    told = []
    two = defend_files(job("two"), lambda done, total, note: told.append(done), engine=engine)
    assert outcome_of(job("two").out) == outcome_of(job("one").out)
    assert torch.equal(two.images["given"], one.images["given"])
    assert told == sorted(told)


class Blinded(Local):
    """Its workers are asked for what they would need on another machine."""

    here = False


def test_workers_that_get_everything_sent(job, tmp_path):
    """The files are gone when the workers open them; the inputs stay, as a shared disk would have them."""

    class Elsewhere(Blinded):
        def run(self, batches):
            (tmp_path / "my_model.py").unlink()
            return super().run(batches)

    defend_files(job("one"))
    here = outcome_of(job("one").out)
    defend_files(job("two"), engine=Elsewhere(1))
    assert outcome_of(job("two").out) == here


def test_a_classifier_with_other_numbers_is_refused(job):
    with pytest.raises(EngineError, match=r"opened the classifier with other numbers .* draw them with a seed"):
        defend_files(job("two", classifier="drawn"), engine=Local(1))
    assert [path.name for path in job("two").out.iterdir()] == ["defended"]


def test_an_image_has_the_start_of_its_number(job, tmp_path):
    """Two equal images, each the first of its batch, are searched from different starts; other batches change nothing."""
    values = np.load(tmp_path / "in.npy")
    values[6] = values[0]
    np.save(tmp_path / "in.npy", values)
    items = defend_files(job("one", batch_size=6)).items
    assert abs(items[0]["distance"] - items[5]["distance"]) > 1e-3
    others = defend_files(job("two", batch_size=4)).items
    assert [item["distance"] for item in others] == pytest.approx([item["distance"] for item in items], rel=1e-3)


def test_a_deadly_item_is_set_aside_and_the_rest_is_defended(job, tmp_path, monkeypatch):
    monkeypatch.setenv("SAFE", str(os.getpid()))
    values = np.load(tmp_path / "in.npy")
    values[8, 0, 0, 0] = 1.0
    np.save(tmp_path / "in.npy", values)
    settings = {"classifier": "Deadly", "batch_size": 4, "restarts": 1}
    one = defend_files(job("one", **settings))
    two = defend_files(job("two", **settings), engine=Local(2))
    for number, (here, there) in enumerate(zip(one.items, two.items, strict=True)):
        if number < 7:  # the sixth of twelve cannot be read
            assert here == there
            continue
        assert there["status"] == "POISONED" and there["before"] is there["changed"] is None
        assert "3 workers were lost with it, the last one was killed by SIGKILL" in there["problem"]
        assert there["name"] == here["name"] and there["label"] == here["label"] and there.keys() > here.keys()
    assert (two.run["lost_workers"], two.run["retries"], two.run["poisoned"]) == (3, 2, 1)
    known = [item for item in one.items[:7] if item["before"] == item["label"]]
    assert two.numbers["accuracy_before"] == len(known) / 7
    found = np.load(job("two").out / "defended" / "in.npy")
    assert np.isnan(found[8:]).all() and np.isfinite(np.delete(found[:8], 5, 0)).all()


def test_the_line_shows_workers_and_speed(job, monkeypatch):
    monkeypatch.setattr("genprior.jobs.work._INTERVAL", 0.0)
    told = []
    defend_files(job("one"), lambda done, total, note: told.append((done, total, note)), engine=Local(2))
    assert any("2 workers" in note and "items/s" in note for _, _, note in told)
    within = []
    defend_files(job("two", batch_size=12), lambda done, total, note: within.append((done, note)))
    assert any(0 < done < 11 and "median objective" in note for done, note in within)
