"""What solving a batch gives: values that can be sent, the same on every run; batches set aside; images evenly spread."""

import json
import pickle

import numpy as np
import pytest
import torch

from genprior.cli.recover import _failures
from genprior.engines import Poisoned, Serial
from genprior.files import open_items
from genprior.files.expected import Expected
from genprior.jobs.records import sampled
from genprior.jobs.recover import recover
from genprior.models.foreign import open_generator
from tests.jobs.records import ledger_of


class Keeping(Serial):
    """This process, and its answers; one batch may be set aside."""

    def __init__(self, poisoned=None):
        object.__setattr__(self, "answers", [])
        object.__setattr__(self, "poisoned", poisoned)

    def run(self, batches):
        for number, answer in super().run(batches):
            self.answers.append(answer)
            yield number, Poisoned("killed 3 times by signal 9") if number == self.poisoned else answer


def solved_by(job):
    """The batches of a job."""
    engine = Keeping()
    recover(job, engine=engine)
    return engine.answers


def test_a_batch_can_be_sent_and_is_the_same_when_it_comes(job, made, tmp_path):
    values = np.load(made)
    values[3] = np.nan
    np.save(made, values)
    for batch in solved_by(job(batch_size=4, steps=3)):
        came = pickle.loads(pickle.dumps(batch))
        assert all(one is None or one.untyped_storage().nbytes() == one.nbytes for one in came.signals), (
            "rows of its own"
        )
        names = [None if signal is None else "x" for signal in batch.signals]
        assert came.to_record(names) == batch.to_record(names)
        assert [signal is None for signal in came.signals] == [name is None for name in names]
        for left, right in zip(came.signals, batch.signals, strict=True):
            assert left is right is None or torch.equal(left, right)
        assert came.images.keys() == batch.images.keys() == {"after", "back", "truth"}
        assert all(torch.equal(came.images[name], batch.images[name]) for name in batch.images)


def test_only_what_a_run_is_differs_between_runs(job, tmp_path):
    one, two = (solved_by(job(batch_size=4, steps=3, noise=0.1, out=tmp_path / name)) for name in ("one", "two"))
    for left, right in zip(one, two, strict=True):
        records = [batch.to_record(["x"] * len(batch.items)) for batch in (left, right)]
        runs = [record.pop("run") for record in records]
        assert records[0] == records[1] and "seconds" not in records[0] and all(run["seconds"] > 0 for run in runs)
        assert all(torch.equal(left.images[name], right.images[name]) for name in left.images)
        assert records[0]["items"][0]["output"] == "recovered/x"


@pytest.mark.parametrize(("total", "most"), [(7, 3), (7, 7), (7, 9), (1000, 16), (5, 0), (1, 1), (10**8, 16)])
def test_images_are_evenly_spread(total, most):
    numbers = sampled(total, most)
    assert len(numbers) == min(total, most) and numbers == sorted(set(numbers))
    if numbers:
        gaps = np.diff([*numbers, total])
        assert numbers[0] == 0 and gaps.max() - gaps.min() <= 1 and gaps.min() >= 1


def test_the_report_shows_these(job, made):
    done = job(batch_size=3, steps=3, pictures=3)
    recover(done)
    images = list(ledger_of(done.out).images())
    assert [batch.get("truth", torch.zeros(0)).shape[0] for batch in images] == [2, 1, 0]
    shown = torch.cat([batch["truth"] for batch in images if batch])
    assert np.array_equal(shown.numpy(), np.load(made)[[0, 2, 4]])
    recovered = np.load(done.out / "recovered" / "made.npy")
    assert np.array_equal(torch.cat([batch["after"] for batch in images if batch]).numpy(), recovered[[0, 2, 4]])
    assert "3 of 7 items, evenly spread." in (done.out / "report.html").read_text()
    recover(job(batch_size=3, steps=3, pictures=7))
    assert "3 of 7 items, evenly spread." in (done.out / "report.html").read_text(), "those that were kept"


def test_images_are_in_the_order_of_items_where_classes_are_not(job, model, tmp_path):
    generator, labels = open_generator(f"{model}:Conditional", label=0), np.array([2, 0, 3, 2, 0])
    with torch.no_grad():
        images = generator.module.module(generator.sample_latent(5, seed=1), torch.from_numpy(labels))
    images[1] = torch.nan
    np.save(tmp_path / "x.npy", images.numpy())
    np.save(tmp_path / "labels.npy", labels)
    source = {"labels": str(tmp_path / "labels.npy")}
    done = job("Conditional", source=source, inputs=(str(tmp_path / "x.npy"),), steps=3, pictures=16)
    recover(done)
    ledger = ledger_of(done.out)
    assert next(ledger.batches())["shown"] == [0, 2, 3, 4], "an unreadable item has no image"
    found = next(ledger.images())
    assert np.array_equal(found["truth"].numpy(), images.numpy()[[0, 2, 3, 4]])
    assert np.array_equal(found["after"].numpy(), np.load(done.out / "recovered" / "x.npy")[[0, 2, 3, 4]])


def test_a_batch_that_is_set_aside(job):
    done = job(batch_size=2, steps=3)
    outcome = recover(done, engine=Keeping(poisoned=1))
    document = json.loads((done.out / "result.json").read_text())
    for number, item in enumerate(document["items"]):
        assert (item["status"] == item["attention"].upper() == "POISONED") if number in (2, 3) else item["output"]
        assert item["name"] == f"made.npy[{number}]"
    assert document["items"][3] == {
        "name": "made.npy[3]", "status": "POISONED", "advice": "killed 3 times by signal 9", "output": None,
        "attention": "poisoned",
    }  # fmt: skip
    assert document["summary"]["status"]["POISONED"] == document["summary"]["attention"]["poisoned"] == 2
    assert outcome.recovered == 5 and outcome.counts["UNREADABLE"] == 0
    assert "<td>POISONED</td>" in (page := (done.out / "report.html").read_text()) and "killed 3 times" in page
    rows = np.load(done.out / "recovered" / "made.npy")
    assert [bool(np.isnan(row).all()) for row in rows] == [False, False, True, True, False, False, False]
    (failure,) = _failures(outcome, skip=True)
    assert failure.startswith("2 of 7 items were set aside, because") and "(killed 3 times by signal 9)" in failure
    assert recover(done).counts["POISONED"] == 2, "it counts as done"


def test_names_without_reading(made, tmp_path):
    np.save(tmp_path / "one.npy", np.load(made)[0])
    items = open_items([made, tmp_path / "one.npy"], Expected((1, 8, 8)))
    assert items.names(5, 8) == ["made.npy[5]", "made.npy[6]", "one.npy"] == [one.name for one in items.read(5, 8)]
