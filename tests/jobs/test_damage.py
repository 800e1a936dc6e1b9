"""What may happen to a job's files while it runs or rests: records damaged, inputs changed, folders removed, disks full."""

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from genprior._journal import Record
from genprior._segments import Log
from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.jobs.ledger import Ledger
from genprior.jobs.recover import recover
from tests.jobs.conftest import Noting
from tests.jobs.records import spoil

batches = Ledger.batches


@pytest.fixture
def images(tmp_path, made):
    """The seven images as files."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(np.load(made)):
        Image.fromarray((image[0] * 255).round().astype(np.uint8)).save(folder / f"{number}.png")
    return folder


def stored(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def solved(job):
    """The first items of the batches that a run solves, and what came out."""
    engine = Noting()
    outcome = recover(job, engine=engine)
    return engine.told, outcome


def during(moment, action):
    """Something happens once, when so many items are done."""
    done = []

    def progress(place, total, note):
        if "reading" in note and place >= moment and not done:
            done.append(action())

    return progress


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def other_job(content):
    """The record of another job under the same number."""
    with tempfile.TemporaryDirectory() as folder:
        Log(Path(folder), "other").append(1, Record({"items": []}, {}))
        return (Path(folder) / "records-000000.log").read_bytes()


DAMAGES = {
    "gone": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"{}",
    "another job": other_job,
    "cut": lambda content: content[:-9],
    "head": lambda content: content[:20] + b"x" + content[21:],
    "body": lambda content: content[:-20] + b"x" + content[-19:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_set_aside_and_its_batch_done_again(job, images, damage):
    done = job(inputs=(str(images),), operator="downsample:2", batch_size=2, steps=3)
    recover(done)
    before = stored(done.out / "recovered")
    path = spoil(done.out, 1, DAMAGES[damage])
    spoilt = path.read_bytes()
    told, outcome = solved(done)
    assert told == [2], "this batch and no other"
    if damage != "gone":
        assert path.with_name(f"{path.name}.damaged").read_bytes() == spoilt
        assert any(f"{path.name}.damaged" in note and "done again" in note for note in outcome.notes)
    assert stored(done.out / "recovered") == before and outcome.recovered == 7
    assert len(json.loads((done.out / "result.json").read_text())["items"]) == 7
    told, outcome = solved(done)
    assert told == [] and not any("damaged" in note for note in outcome.notes), "and then all is well"


def test_records_damaged_in_the_end_do_not_shorten_the_result(job, monkeypatch):
    """Between the last batch and the report: an error, and the same command mends it."""
    done = job(batch_size=2, steps=3)
    finish = Outputs.finish

    def spoil_one(outputs, batch):
        finish(outputs, batch)
        if batch == 3:
            spoil(done.out, 2)

    monkeypatch.setattr(Outputs, "finish", spoil_one)
    with pytest.raises(ValueError, match=r"records-000000\.log is damaged: the same command"):
        recover(done)
    monkeypatch.undo()
    recover(done)
    assert len(json.loads((done.out / "result.json").read_text())["items"]) == 7


def test_records_lost_in_the_end_do_not_shorten_the_result(job, monkeypatch):
    done = job(batch_size=2, steps=3)
    monkeypatch.setattr(Ledger, "batches", lambda ledger: filter(lambda record: record["first"] != 4, batches(ledger)))
    with pytest.raises(ValueError, match=r"out has records of 5 of 7 items: the same command does the others again"):
        recover(done)
    assert not (done.out / "result.json").exists()


def test_a_job_of_an_earlier_format_is_refused(job):
    done = job(steps=3)
    recover(done)
    path = done.out / ".job" / "job.json"
    path.write_text(path.read_text().replace("genprior-job-5", "genprior-job-4"))
    with pytest.raises(
        ValueError, match=r"of another version of genprior .*genprior-job-4, .*finish it with that version"
    ):
        recover(done)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_a_damaged_job_is_not_taken_for_another(job, content):
    done = job(steps=2)
    recover(done)
    (done.out / ".job" / "job.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"job\.json is damaged, .* give another `out`, or delete the folder"):
        recover(done)


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b""), lambda path: path.write_text("{}")])
def test_damaged_rows_of_an_array_are_made_again(job, damage):
    done = job(batch_size=2, steps=3)
    with pytest.raises(KeyboardInterrupt):
        recover(done, lambda place, total, note: exec("raise KeyboardInterrupt") if place >= 4 else None)
    damage(done.out / ".job" / "rows-000000.npy")
    told, outcome = solved(done)
    assert told == [0, 2, 4, 6] and any("rows-000000.npy.damaged" in note for note in outcome.notes)
    assert np.isfinite(np.load(done.out / "recovered" / "made.npy")).all()


def test_forgotten_batches_leave_no_images(tmp_path):
    ledger = Ledger(tmp_path, {})
    for number in range(3):
        ledger.write_batch(number, {"items": []}, {"after": torch.full((1, 1, 2, 2), number / 2)})
    ledger.forget([1, 2])
    assert [{name: part.tolist() for name, part in images.items()} for images in ledger.images()] == [
        {"after": [[[[0.0, 0.0], [0.0, 0.0]]]]}
    ]
    assert ledger.batch(0) == {"items": []} and ledger.batch(1) is None


def test_an_image_that_changes_during_the_job(job, images):
    done = job(inputs=(str(images),), operator="downsample:2", batch_size=2, steps=3)
    outcome = recover(done, during(2, lambda: Image.new("L", (8, 8)).save(images / "4.png")))
    assert outcome.counts["UNREADABLE"] == 1 and outcome.recovered == 6
    assert "4.png has changed since the job began" in outcome.reasons["UNREADABLE"]
    assert any("4.png changed during the job" in note for note in outcome.notes)
    assert not (done.out / "recovered" / "4.png").exists()
    with pytest.raises(ValueError, match=r"content of the inputs has changed; changed since it began: .*4\.png\)"):
        recover(done)


def test_an_array_that_changes_during_the_job(job, made):
    """Rows of two versions are not mixed."""
    done = job(batch_size=2, steps=3)
    outcome = recover(done, during(4, lambda: np.save(made, np.load(made)[::-1])))
    assert outcome.counts["UNREADABLE"] == 3
    rows = np.load(done.out / "recovered" / "made.npy")
    assert np.isfinite(rows[:4]).all() and np.isnan(rows[4:]).all()


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 1, 4, 4), np.float32))
    items = open_items([path], Expected((1, 4, 4)))
    rows = items.parts[0].array.rows
    monkeypatch.setattr(
        items.parts[0].array, "rows", lambda start, stop: (rows(start, stop), os.utime(path, (1, 1)))[0]
    )
    loaded = items.read(0, 2)
    assert all(item.value is None and "has changed since the job began" in item.problem for item in loaded)
    assert items.changed() == [path]


def test_an_input_that_changes_after_it_was_read_is_told(job, made):
    done = job(batch_size=2, steps=3)
    outcome = recover(done, lambda place, total, note: os.utime(made, (1, 1)) if "report" in note else None)
    assert outcome.recovered == 7, "all of the version at the start"
    assert [note for note in outcome.notes if "made.npy changed during the job" in note]


def test_after_the_folder_was_deleted_the_same_command_starts_again(job, images):
    done = job(inputs=(str(images),), operator="downsample:2", batch_size=2, steps=3)
    with pytest.raises(FileNotFoundError, match=r"recovered is no longer there: was it removed during the job"):
        recover(done, during(2, lambda: shutil.rmtree(done.out)))
    assert not done.out.exists(), "nothing of unknown origin is left"
    assert solved(done)[0] == [0, 2, 4, 6]


def test_a_full_disk_names_the_file_and_the_job_goes_on(job, images, monkeypatch):
    done = job(inputs=(str(images),), operator="downsample:2", batch_size=2, steps=3)
    fsync = os.fsync

    def full(number):
        if (done.out / "recovered" / "1.png").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*recovered'"):
        recover(done)
    monkeypatch.undo()
    assert solved(done)[1].recovered == 7


def test_images_of_a_batch_sync_their_folder_once(tmp_path, images, monkeypatch):
    items = open_items([images], Expected((1, 8, 8)))
    outputs = Outputs(items, tmp_path / "out", tmp_path, (1, 8, 8))
    folders = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: folders.append(os.path.isdir(f"/proc/self/fd/{number}")) or fsync(number)
    )
    outputs.write(0, [item.value for item in items.read(0, 7)])
    assert folders == [False] * 7 + [True], "before the batch is recorded"
