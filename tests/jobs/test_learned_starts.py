"""Jobs whose starts are guessed by a trained encoder."""

import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from genprior.jobs.recover import Driver, recover
from genprior.jobs.settings import Source
from genprior.jobs.shipment import Shipment
from genprior.jobs.work import Model
from genprior.models.foreign import open_generator
from genprior.operators.parse import parse_operator
from genprior.training.loop import train
from genprior.training.start_encoder import StartEncoderSettings, StartEncoderTask
from genprior.training.task import Devices

OPERATOR = "gaussian:m=24,seed=1"


def encoder_for(model, operator, folder, steps=200):
    generator = open_generator(model)
    settings = StartEncoderSettings(width=8, batch=16, samples=64, steps=steps, rate=5e-3)
    task = StartEncoderTask(settings, generator, parse_operator(operator, generator.signal_shape), seed=0)
    train(task, folder, seed=0, devices=Devices("cpu"))
    return str(task.finish(folder, {})[0])


@pytest.fixture
def encoder(model, tmp_path):
    return encoder_for(f"{model}:build", OPERATOR, tmp_path / "encoder")


def test_a_job_uses_the_encoder_and_counts_its_passes(job, encoder, tmp_path):
    plain = recover(job(restarts=2, steps=1))
    found = recover(job(restarts=2, steps=1, start=encoder, out=tmp_path / "other"))
    assert found.forwards == plain.forwards + 2, "one to check that it fits, one to rank its guesses"
    first, second = (json.loads(outcome.result.read_text())["items"] for outcome in (plain, found))
    assert np.median([i["residual"] for i in second]) < np.median([i["residual"] for i in first])
    assert encoder in found.report.read_text()


def test_the_encoder_belongs_to_the_job(job, model, encoder, tmp_path):
    recover(job(start=encoder))
    again = recover(job(start=encoder))
    assert again.total == 7
    for other in (None, encoder_for(f"{model}:build", OPERATOR, tmp_path / "second", steps=2)):
        with pytest.raises(ValueError, match="start"):
            recover(job(start=other))
    shutil.copyfile(tmp_path / "second" / "encoder.safetensors", encoder)
    with pytest.raises(ValueError, match="content of the start"):
        recover(job(start=encoder))


def test_an_encoder_for_something_else_is_refused_before_anything_is_written(job, model, encoder, tmp_path):
    for changes, message in (
        ({"operator": "gaussian:m=24,seed=2"}, "start is an encoder for another operator"),
        ({"operator": "gaussian:m=25"}, "start is an encoder of 24 measurements"),
        ({"name": "linear"}, "start is an encoder for another generator"),
        ({"restarts": 1}, "`restarts=1` leaves no room"),
        ({"source": {"labels": str(tmp_path / "labels.npy")}}, "an encoder is made for one class"),
    ):
        with pytest.raises(ValueError, match=message):
            recover(job(start=encoder, **changes))
    (tmp_path / "encoder" / "encoder.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        recover(job(start=encoder))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere"):
        recover(job(start="nowhere.safetensors"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("loss", ["l2", "l1", "linf"])
def test_denoising_with_any_loss(job, model, tmp_path, loss):
    encoder = encoder_for(f"{model}:build", "identity", tmp_path / "encoder")
    done = recover(job(start=encoder, operator="identity", noise=0.05, loss=loss, steps=5))
    assert done.recovered == 7


def test_a_worker_gets_the_file(job, encoder, tmp_path, monkeypatch):
    work = Driver(job(start=encoder), lambda *_: None, None).work()
    sent = Shipment.of(work.job.source, OPERATOR, start=encoder, whole=True)
    content = pickle.dumps(replace(work, shipment=sent))
    y = torch.randn(2, 24)
    expected = Model.of(work.here.generator, OPERATOR, encoder).start(y)
    (tmp_path / "encoder" / "encoder.safetensors").unlink()
    with pickle.loads(content).shipment.arrived() as here:
        assert here.start != encoder
    found = pickle.loads(content)._arrived("cpu")
    assert torch.equal(found.start(y), expected)
    assert Shipment.of(Source(), whole=False).start is None
