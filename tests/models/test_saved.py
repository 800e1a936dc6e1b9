"""Network files: what is read is what was written, and anything else is refused."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import genprior as gp
from genprior.generators.preconditioner import mean_gram
from genprior.models import saved
from genprior.models.bundled import store_preconditioner
from genprior.models.classifiers import ConvClassifier
from genprior.models.encoders import Encoder
from genprior.models.generators import ConvGenerator, ResidualGenerator
from genprior.models.saved import Saved, build, load_network, save_network

NETWORKS = [
    ("conv-generator", {"latent": 3, "width": 2}, ConvGenerator),
    ("residual-generator", {"latent": 3, "width": 1, "channels": 1}, ResidualGenerator),
    ("conv-classifier", {"classes": 3, "width": 2, "hidden": 4}, ConvClassifier),
    ("encoder", {"signal_shape": [1, 28, 28], "latent": 3, "width": 2}, Encoder),
]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "generator.safetensors"
    facts = {"law": {"radius": 5.0, "scale": 2.0}, "signal_range": [0.0, 1.0]}
    settings = {"latent": 3, "width": 2}
    save_network(path, Saved("conv-generator", settings, ConvGenerator(**settings), facts))
    return path


def header(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


@pytest.mark.parametrize(("kind", "settings", "network"), NETWORKS)
def test_round_trip(tmp_path, kind, settings, network):
    module = network(**settings)
    save_network(tmp_path / "file", Saved(kind, settings, module, {"seed": 3}))
    again = load_network(tmp_path / "file")
    assert (again.kind, again.settings, again.facts) == (kind, settings, {"seed": 3})
    assert type(again.module) is network and not again.module.training
    for (name, old), new in zip(module.named_parameters(), again.module.parameters(), strict=True):
        assert new.dtype == torch.float32 and not new.requires_grad
        assert torch.equal(new, old.detach().half().float()), name
    assert all(tensor.dtype == torch.float16 for tensor in load_file(tmp_path / "file").values())


def test_a_saved_generator_is_a_generator(written):
    G = gp.load_generator(str(written))
    assert G.latent_shape == (3,) and G.signal_shape == (1, 28, 28) and G.signal_range == (0.0, 1.0)
    assert G.latent == gp.TruncatedNormal(radius=5.0, scale=2.0)
    assert G(G.sample_latent(2)).shape == (2, 1, 28, 28)
    assert gp.load_generator(written, device="cpu").device.type == "cpu"


def test_extras_travel_with_the_network_in_full_precision(written):
    before = gp.load_generator(written)
    saved.add_extras(written, {"other": torch.tensor([1e-9])})
    store_preconditioner(written, points=4)
    again, G = load_network(written), gp.load_generator(written)
    assert set(again.extras) == {"other", "metric"} and float(again.extras["other"]) == pytest.approx(1e-9)
    z = G.sample_latent(2)
    assert torch.equal(G(z), before(z)), "the weights stay"
    assert torch.equal(G.preconditioner().matrix, mean_gram(before, 4)) and G.backwards == 0


@pytest.mark.parametrize("place", [-1, -500])
def test_one_changed_byte_is_noticed(written, place):
    content = bytearray(written.read_bytes())
    content[place] ^= 1
    written.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="damaged or was changed: its numbers do not fit its checksum"):
        load_network(written)


def test_changed_settings_are_noticed(written):
    tensors, meta = load_file(written), header(written)
    meta["network"] = meta["network"].replace('"radius": 5.0', '"radius": 6.0')
    save_file(tensors, written, metadata=meta)
    with pytest.raises(ValueError, match="damaged or was changed"):
        load_network(written)


@pytest.mark.parametrize("size", [0, 5, 400, -1])
def test_truncated(written, size):
    written.write_bytes(written.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"cannot be read as safetensors .*truncated"):
        load_network(written)


def test_settings_that_do_not_fit_the_weights(written):
    tensors = load_file(written)
    text = json.dumps({"kind": "conv-generator", "settings": {"latent": 4, "width": 2}, "facts": {}})
    meta = {"format": "genprior-network-1", "network": text, "sha256": saved._digest(tensors, text)}
    save_file(tensors, written, metadata=meta)
    with pytest.raises(
        ValueError, match=r"0\.weight has shape \(128, 3\), but .* expects \(128, 4\): the latent or width"
    ):
        load_network(written)


def test_what_is_not_ours(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"is not a network saved by genprior .*gp.Generator"):
        gp.load_generator(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        gp.load_generator(tmp_path / "missing.safetensors")


def test_the_wrong_role(written):
    with pytest.raises(ValueError, match="holds a conv-generator, not a network of type 'classifier'"):
        gp.load_classifier(written)
    with pytest.raises(ValueError, match="not a network of type 'encoder'"):
        gp.load_encoder(written)


def test_a_folder_of_the_same_name_does_not_hide_the_bundled_network(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    assert gp.load_generator("mnist").latent_shape == (128,)


def test_more_facts_keep_the_numbers(written):
    before = load_file(written)
    saved.add_facts(written, {"quality": 0.5})
    assert load_network(written).facts["quality"] == 0.5 and load_network(written).facts["law"]["radius"] == 5.0
    for name, tensor in load_file(written).items():
        assert torch.equal(tensor, before[name])


def test_names_that_do_not_exist():
    with pytest.raises(ValueError, match=r"no bundled generator 'minst': give one of .*'mnist'"):
        gp.load_generator("minst")
    with pytest.raises(TypeError, match="name must be the name of a bundled generator or a path, got 3"):
        gp.load_generator(3)
    with pytest.raises(ValueError, match="there is no network 'x'"):
        build("x", {})
    with pytest.raises(ValueError, match="settings of encoder do not fit it"):
        build("encoder", {"depth": 3})


def test_a_full_disk_leaves_the_old_file(written):
    """A real one: the process may not write files larger than a kilobyte."""
    script = f"""
import resource, sys
from genprior.models.generators import ConvGenerator
from genprior.models.saved import Saved, save_network
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
try:
    save_network({str(written)!r}, Saved("conv-generator", {{"latent": 3, "width": 2}}, ConvGenerator(3, 2)))
except OSError as problem:
    sys.exit("written: " + str(problem))
"""
    old = written.read_bytes()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert written.read_bytes() == old
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_files_can_be_read_by_others(written):
    assert written.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_nan_and_overflow_are_not_saved(tmp_path):
    module = ConvGenerator(3, 2)
    module[0].bias.data[0] = 1e6  # not finite as float16
    with pytest.raises(ValueError, match=r"0\.bias would hold NaN or infinity as torch\.float16"):
        save_network(tmp_path / "file", Saved("conv-generator", {"latent": 3, "width": 2}, module))
    assert not list(tmp_path.iterdir())
