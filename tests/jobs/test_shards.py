"""A job in shards, gathered, is the job in one; and what a job would do, before it is begun."""

import json
import os

import numpy as np
import pytest

from genprior.engines import EngineError, Local
from genprior.jobs.forecast import forecast
from genprior.jobs.recover import recover
from genprior.jobs.shards import Shard, gather, recover_shard
from genprior.jobs.work import Task
from tests.jobs.conftest import Noting


def result_of(out):
    """``result.json`` without what a run took."""
    found = json.loads((out / "result.json").read_text())
    for name in ("run", "seconds", "forwards", "backwards"):
        del found["summary"][name]
    return found


def same_job(one, other):
    assert result_of(one) == result_of(other)
    assert np.array_equal(np.load(one / "recovered" / "made.npy"), np.load(other / "recovered" / "made.npy"))


@pytest.mark.parametrize("count", [1, 3, 9])
def test_gathered_shards_are_the_job_in_one(job, tmp_path, count):
    """More shards than batches, too; in any order."""
    settings = {"batch_size": 2, "steps": 4, "noise": 0.1, "box": (0.0, float("inf")), "pictures": 3}
    whole, parts = job(**settings, out=tmp_path / "whole"), job(**settings, out=tmp_path / "parts")
    recover(whole)
    items = [recover_shard(parts, Shard(number, count)).items for number in range(count, 0, -1)]
    assert sum(items) == 7
    assert not (parts.out / "result.json").exists() and not (parts.out / "recovered").exists()
    outcome = gather(parts.out)
    same_job(parts.out, whole.out)
    assert outcome.run["engine"] == f"{count} shards"
    same_job(gather(parts.out).result.parent, whole.out)


def test_a_shard_resumes_and_repeats_nothing(job):
    def press(done, total, note):
        if done >= 2:
            raise KeyboardInterrupt

    done = job(batch_size=1, steps=3)
    with pytest.raises(KeyboardInterrupt):
        recover_shard(done, Shard(1, 2), press)
    engine = Noting()
    assert recover_shard(done, Shard(1, 2), engine=engine).items == 4
    assert engine.told == [4, 6]


def test_what_is_missing_is_named_and_nothing_is_half_gathered(job):
    done = job(batch_size=1, steps=3)
    recover_shard(done, Shard(2, 3))
    with pytest.raises(EngineError, match=r"5 batches are missing: run these shards again.*: 1/3, 3/3$"):
        gather(done.out)
    recover_shard(done, Shard(1, 2))
    with pytest.raises(EngineError, match="2 batches are in none of the shards"):
        gather(done.out)
    recover_shard(done, Shard(2, 2))
    assert gather(done.out).recovered == 7, "shards of several divisions"


def test_gather_works_from_any_folder(job, made, tmp_path, monkeypatch):
    monkeypatch.chdir(made.parent)
    recover_shard(job(inputs=("made.npy",), steps=3), Shard(1, 1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert gather(job().out).recovered == 7
    assert os.getcwd() == str(tmp_path / "elsewhere")


def test_two_processes_on_one_shard_are_refused(job):
    from genprior.jobs.ledger import alone

    with alone(job().out, ".shards/000001-of-000002"), pytest.raises(ValueError, match="another process is working"):
        recover_shard(job(), Shard(1, 2))


def test_what_is_still_being_solved_is_not_gathered(job):
    """Opening the records would cut off the one that is being written."""
    from genprior.jobs.ledger import alone

    recover_shard(job(steps=3), Shard(1, 1))
    log = next((job().out / ".shards" / "000001-of-000001").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    with alone(job().out, ".shards/000001-of-000001"), pytest.raises(ValueError, match="another process is working"):
        gather(job().out)
    assert log.read_bytes() == whole[:-1]
    log.write_bytes(whole)
    assert gather(job().out).recovered == 7


def test_shards_of_another_job_are_refused(job):
    recover_shard(job(steps=3), Shard(1, 2))
    with pytest.raises(ValueError, match=r"holds another job .steps was 3, now 4"):
        recover_shard(job(steps=4), Shard(2, 2))


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/", "-1/3", "1.5/3", "1/0"])
def test_a_shard_is_a_number_of_a_number(text):
    with pytest.raises(ValueError, match=r"shard must be a number from 1 .*such as 3/16, got"):
        Shard.of(text)


def test_a_folder_without_shards(job, tmp_path):
    with pytest.raises(ValueError, match="holds no job"):
        gather(tmp_path)
    recover(job(steps=3))
    with pytest.raises(ValueError, match="holds no shards"):
        gather(job().out)


def test_a_forecast_solves_one_batch_and_writes_nothing(job):
    engine = Noting()
    found = forecast(job(batch_size=2, steps=3), engine=engine)
    assert (found.items, found.batches, found.batch_items, found.workers, found.begun) == (7, 4, 2, 1, False)
    assert found.seconds == pytest.approx(4 * found.batch_seconds) and found.batch_seconds > 0
    assert not job().out.exists() and engine.told == []
    recover(job(batch_size=2, steps=3))
    assert forecast(job(batch_size=2, steps=3)).begun
    assert forecast(job(batch_size=2, time=1e-3)).seconds == 1e-3


def test_a_forecast_gives_its_batch_the_share_of_the_time_that_it_would_have(job, monkeypatch):
    made = []
    monkeypatch.setattr("genprior.jobs.forecast.Task", lambda *given: made.append(Task(*given)) or made[-1])
    forecast(job(batch_size=2, time=0.8), engine=Local(2))
    assert (made[-1].start, made[-1].stop, made[-1].seconds) == (0, 2, 0.8 * 2 / 4)
