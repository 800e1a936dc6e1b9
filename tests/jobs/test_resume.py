"""No file of the user is overwritten, and lost results are computed again."""

import json
import random

import numpy as np
import pytest
from PIL import Image

from genprior.jobs.recover import recover
from genprior.jobs.resume import Plan
from tests.jobs.conftest import Noting
from tests.jobs.records import recorded, spoil


def write_pictures(folder, made):
    folder.mkdir(parents=True)
    for number, picture in enumerate(np.load(made)):
        Image.fromarray((picture[0] * 255).round().astype(np.uint8)).save(folder / f"{number}.png")
    return folder


def stored(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def solved(job):
    """The first items of the batches that a run solves."""
    engine = Noting()
    recover(job, engine=engine)
    return engine.told


def test_an_input_is_never_written_over(job, made, tmp_path):
    folder = write_pictures(tmp_path / "recovered", made)
    before = stored(folder)
    with pytest.raises(ValueError, match=r"the input .*3\.png would be overwritten by its result: give another `out`"):
        recover(job(inputs=(str(folder / "3.png"),), out=tmp_path, steps=2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recovered").symlink_to(folder)
    with pytest.raises(ValueError, match=r"the input .* would be overwritten"):
        recover(job(inputs=(str(folder),), steps=2))
    assert stored(folder) == before


def test_an_input_is_not_written_over_in_a_folder_with_a_job(job, made, tmp_path):
    recover(job(steps=2))
    folder = tmp_path / "out" / "recovered"
    before = stored(folder)
    with pytest.raises(ValueError, match=r"the input .* would be overwritten"):
        recover(job(inputs=(str(folder / "made.npy"),), steps=2))
    assert stored(folder) == before


@pytest.mark.parametrize("name", ["result.json", "report.html", "recovered/made.npy"])
def test_files_of_unknown_origin_are_not_replaced(job, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"would be overwritten, and .* has no record of a job .*another `out`"):
        recover(job(steps=2))
    assert path.read_text() == "mine" and not (tmp_path / "out" / ".job").exists()
    (tmp_path / "out" / "recovered").mkdir(exist_ok=True)
    path.rename(path.with_name("other.txt"))
    recover(job(steps=2))


def test_a_lost_picture_is_made_again(job, made, tmp_path):
    folder = write_pictures(tmp_path / "pictures", made)
    done = job(inputs=(str(folder),), operator="downsample:2", batch_size=2, steps=4)
    assert solved(done) == [0, 2, 4, 6]
    document, before = json.loads((done.out / "result.json").read_text()), stored(done.out / "recovered")
    (done.out / "recovered" / "3.png").unlink()
    assert solved(done) == [2], "and no other"
    assert stored(done.out / "recovered") == before
    again = json.loads((done.out / "result.json").read_text())
    assert [item["objective"] for item in again["items"]] == [item["objective"] for item in document["items"]]
    assert solved(done) == []


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_a_lost_array_is_made_again(job, made, tmp_path, kind):
    values = np.load(made)
    np.savez(tmp_path / "both.npz", a=values[:4], b=values[4:])
    name = {"npy": "made.npy", "npz": "both.npz"}[kind]
    done = job(inputs=(str(tmp_path / name),), batch_size=2, steps=4)
    recover(done)
    before = stored(done.out / "recovered")
    (done.out / "recovered" / name).unlink()

    def press(place, total, note):
        if place >= 4 and "step" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(done, press)
    assert not (done.out / "recovered" / name).exists()
    assert solved(done) == [4, 6], "what was made again before the interruption is kept"
    assert stored(done.out / "recovered") == before


def test_a_lost_record_leaves_no_blank_rows(job, made):
    """The array is in place, one batch of it is unknown: all its rows are made again, also if that is interrupted."""
    done = job(batch_size=2, steps=4)
    recover(done)
    before = stored(done.out / "recovered")
    spoil(done.out, 0)

    def press(place, total, note):
        if place >= 2 and "step" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(done, press)
    assert stored(done.out / "recovered") == before, "the old file stays until the new one is whole"
    assert solved(done) == [2, 4, 6]
    assert stored(done.out / "recovered") == before


def test_batches_in_any_order_give_the_same_files(job, made, tmp_path, monkeypatch):
    """Two arrays and images, taken up again after an interruption in the middle."""
    values = np.load(made)
    folder = write_pictures(tmp_path / "in", made)
    np.savez(folder / "both.npz", a=values[:4], b=values[4:])
    settings = {"inputs": (str(folder),), "operator": "downsample:2", "batch_size": 3, "steps": 4}
    plain, other = job(**settings, out=tmp_path / "plain"), job(**settings)
    recover(plain)

    def shuffled(plan):
        return iter(random.Random(plan.left).sample(found := list(numbers(plan)), len(found)))

    def press(place, total, note):
        if len(recorded(other.out)) == 2:
            raise KeyboardInterrupt

    numbers = Plan.numbers
    monkeypatch.setattr(Plan, "numbers", shuffled)
    with pytest.raises(KeyboardInterrupt):
        recover(other, lambda *told: press(*told) if "reading" in told[2] else None)
    assert recorded(other.out) not in ([0, 1], [1, 0])
    recover(other)
    assert stored(other.out / "recovered") == stored(plain.out / "recovered")
    found = [json.loads((one.out / "result.json").read_text())["items"] for one in (plain, other)]
    assert found[0] == found[1] and sorted(recorded(other.out)) == [0, 1, 2, 3, 4] != recorded(other.out)


def test_neighbours_that_share_a_batch(job, made, tmp_path):
    """Two array files, one batch with rows of both."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name in "abc":
        np.save(folder / f"{name}.npy", np.load(made)[:3])
    done = job(inputs=(str(folder),), batch_size=2, steps=3)
    recover(done)
    before = stored(done.out / "recovered")
    (done.out / "recovered" / "a.npy").unlink()
    recover(done)
    assert stored(done.out / "recovered") == before
    assert not list((done.out / ".job").glob("rows-*"))
