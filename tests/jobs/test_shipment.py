"""Workers on other machines get the files of the generator and the operator."""

import pickle
import shutil
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from genprior.engines import EngineError
from genprior.jobs.settings import Classifier, Source
from genprior.jobs.shipment import Shipment
from genprior.models.bundled import bundled_path
from genprior.models.foreign import source_digest
from genprior.operators.parse import parse_operator


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A user's model with a module beside it, weights, and a mask; the working folder."""
    (tmp_path / "layers.py").write_text("from torch import nn\n\ndef body():\n    return nn.Linear(3, 16)\n")
    code = """
        from torch import nn
        from layers import body

        def build():
            return nn.Sequential(body(), nn.Unflatten(1, (1, 4, 4)))
    """
    (tmp_path / "my_model.py").write_text(textwrap.dedent(code))
    save_file({"0.weight": torch.ones(16, 3), "0.bias": torch.arange(16.0)}, tmp_path / "weights.safetensors")
    np.save(tmp_path / "known.npy", np.eye(4, dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOURCE = Source(generator="my_model.py:build", weights="weights.safetensors", latent_shape=(3,), signal_range="keep")
OPERATOR = "mask:known.npy"
CLASSIFIER = """

def classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
"""


def opened(source, operator):
    generator = source.open().generator
    return source_digest(source.generator, source.weights, generator), parse_operator(operator, generator.signal_shape)


def sent(whole=True):
    digest, operator = opened(SOURCE, OPERATOR)
    return digest, operator, pickle.dumps(Shipment.of(SOURCE, OPERATOR, whole=whole))


def test_what_a_worker_does_not_see_is_unpacked_and_opens_the_same(model, tmp_path_factory, monkeypatch):
    digest, operator, content = sent()
    for file in model.iterdir():
        if file.is_file():
            file.unlink()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pickle.loads(content).arrived() as here:
        assert here.source.generator != SOURCE.generator
        unpacked = Path(here.source.generator.rpartition(":")[0])
        assert unpacked.is_file()
        found, there = opened(here.source, here.operator)
    assert found == digest
    assert not any(folder.exists() for folder in unpacked.parents if folder.name.startswith("genprior-"))
    x = torch.rand(2, 1, 4, 4)
    assert torch.equal(there(x), operator(x))


def test_what_a_worker_sees_is_used_where_it_is(model):
    with pickle.loads(sent(whole=False)[2]).arrived() as here:
        assert here.source.generator == f"{model / 'my_model.py'}:build"
        assert str(model / "known.npy") in here.operator
        opened(here.source, here.operator)


def test_another_version_of_a_file_is_not_used(model):
    digest, _, content = sent()
    save_file({"0.weight": torch.zeros(16, 3), "0.bias": torch.zeros(16)}, model / "weights.safetensors")
    with pickle.loads(content).arrived() as here:
        assert opened(here.source, here.operator)[0] == digest


def test_without_contents_a_worker_that_sees_nothing_says_so(model):
    content = sent(whole=False)[2]
    (model / "layers.py").unlink()
    with pytest.raises(EngineError, match=r"does not see .*same path"), pickle.loads(content).arrived():
        pass


def test_bundled_generators_need_no_files():
    assert Shipment.of(Source(), "downsample:2", Classifier(), whole=True).files == ()


def test_a_bundled_classifier_has_a_file_of_its_own():
    assert source_digest("mnist", role="classifier") != source_digest("mnist")


def scripted(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in this torch
        torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(16, 3))).save(str(path))
    return path


@pytest.mark.parametrize("form", ["code", "script", "trained"])
def test_the_classifier_is_sent_too(model, tmp_path_factory, monkeypatch, form):
    shape = (1, 4, 4)
    if form == "trained":
        shape = (1, 28, 28)
        shutil.copy(bundled_path("mnist", "classifier"), model / "own.safetensors")
    (model / "my_model.py").write_text((model / "my_model.py").read_text() + CLASSIFIER)
    save_file({"1.weight": torch.randn(5, 16), "1.bias": torch.zeros(5)}, model / "classes.safetensors")
    classifier = {
        "code": Classifier(classifier="my_model.py:classes", weights="classes.safetensors"),
        "script": Classifier(classifier=scripted(model / "script.pt").name),
        "trained": Classifier(classifier="own.safetensors"),
    }[form]
    SOURCE.open()
    before = classifier.open(shape)
    content = pickle.dumps(Shipment.of(SOURCE, classifier=classifier, whole=True))
    for file in model.iterdir():
        if file.is_file():
            file.unlink()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pickle.loads(content).arrived() as here:
        after = here.classifier.open(shape)
    x = torch.rand(2, *shape)
    assert torch.equal(after(x), before(x))
