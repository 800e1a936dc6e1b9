"""Files of networks that become gigabytes when they are opened, or are said to hold them: refused before."""

import io
import json
import pickle
import struct
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save
from torch import nn

from genprior.models import saved
from genprior.models.foreign import open_generator
from genprior.models.saved import Saved, load_network, save_network
from genprior.models.weights import load_weights, read_weights


class Calls:
    """Pickled as a call."""

    def __init__(self, function, *given):
        self.call = (function, given)

    def __reduce__(self):
        return self.call


def repacked(content, changed=lambda name, content: content):
    """The same archive with every record deflated."""
    store = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, changed(name, old.read(name)))
    return store.getvalue()


def weights(tensors):
    store = io.BytesIO()
    torch.save(tensors, store)
    return store.getvalue()


@pytest.mark.parametrize("read", [read_weights, open_generator])
def test_packed_weights(tmp_path, read):
    path = tmp_path / "a.pt"
    path.write_bytes(repacked(weights({"a": torch.zeros(5_000_000)})))
    assert path.stat().st_size < 10**5
    with pytest.raises(ValueError, match=r"a\.pt holds 20 MB, more than its size allows"):
        read(path)


def test_a_packed_script(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(3, 2)).save(str(tmp_path / "a.pt"))
    assert open_generator(tmp_path / "a.pt").latent_shape == (3,), "its code is packed, and that is all right"
    content = repacked(
        (tmp_path / "a.pt").read_bytes(), lambda name, old: bytes(2 * 10**7) if "data/0" in name else old
    )
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.pt holds 20 MB, more than its size allows"):
        open_generator(tmp_path / "a.pt")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The records of an honest TorchScript file."""
    path = tmp_path_factory.mktemp("script") / "a.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(nn.Sequential(nn.Linear(4, 16), nn.Tanh()), torch.zeros(2, 4)).save(str(path))
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("record", "change", "message"),
    [
        ("a/data/1", lambda old: b"", "declares 16 numbers in a record that has fewer"),
        ("a/data/0", lambda old: old[:-4], "declares 64 numbers in a record that has fewer"),
        ("a/data.pkl", lambda old: old.replace(b"K\x10K\x04t", b"K\x7fK\x04t", 1), "extends beyond its record"),
        ("a/data.pkl", lambda old: old.replace(b"(K\x04K\x01t", b"(K\x7fK\x01t", 1), "extends beyond its record"),
        ("a/data.pkl", lambda old: old[:-30], "cannot be read as a TorchScript file"),
    ],
)
def test_a_script_with_short_records(tmp_path, script, record, change, message):
    """torch would read beyond their end, or end the process."""
    archived(tmp_path / "honest.pt", script)
    assert open_generator(tmp_path / "honest.pt").latent_shape == (4,)
    changed = change(script[record])
    assert changed != script[record]
    archived(tmp_path / "a.pt", script | {record: changed})
    with pytest.raises(ValueError, match=message):
        open_generator(tmp_path / "a.pt")


def archived(path, records):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def test_an_archive_of_a_later_version(tmp_path):
    content = bytearray(weights({"a": torch.zeros(5)}))
    content[content.index(b"PK\x01\x02") + 6] = 128
    (tmp_path / "a.pt").write_bytes(content)
    for read in (read_weights, open_generator):
        with pytest.raises(ValueError, match=r"a\.pt cannot be read as a file of torch \(zip file version 12\.8\)"):
            read(tmp_path / "a.pt")


def test_overlapping_records(tmp_path):
    """Each is as large as it says, and all are in the same place."""
    content = bytearray(weights({"a": torch.zeros(10_000), "b": torch.ones(10_000)}))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        first = archive.getinfo("archive/data/0")
    entry = content.index(b"PK\x01\x02")
    while content[entry + 46 :].split(b"archive/", 1)[1][:6] != b"data/1":
        entry = content.index(b"PK\x01\x02", entry + 1)
    for _ in range(3):  # the second record is said to be much larger
        struct.pack_into("<II", content, entry + 20, 10**6, 10**6)
    assert first.file_size == 40_000
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.pt holds 1.04 MB, more than its size allows"):
        read_weights(tmp_path / "a.pt")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        Calls(bytearray, 10**7),
        Calls(
            torch._utils._rebuild_device_tensor_from_cpu_tensor,
            torch.zeros(1).expand(10**7),
            torch.float64,
            "cpu",
            False,
        ),
    ],
    ids=["bytes", "expanded"],
)
def test_a_few_bytes_that_ask_for_much(tmp_path, old, call):
    """torch allows these calls in files of weights."""
    torch.save({"a": call}, tmp_path / "a.pt", _use_new_zipfile_serialization=not old, pickle_protocol=2)
    with pytest.raises(ValueError, match=r"a\.pt holds .*(bytearray|from_cpu_tensor), which no weights need"):
        read_weights(tmp_path / "a.pt")


@pytest.mark.parametrize("old", [False, True])
def test_honest_checkpoints_are_read(tmp_path, old):
    module, other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimiser = torch.optim.Adam(module.parameters())
    module(torch.randn(5, 3)).sum().backward()
    optimiser.step()
    content = {
        "step": 3,
        "net": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "note": "x",
        "size": torch.Size([2]),
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
    load_weights(other, tmp_path / "a.pt")
    assert torch.equal(other[0].weight, module[0].weight)


def test_weights_with_pickled_code_are_still_told_so(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Calls(print, "run"), protocol=2))
    with pytest.raises(ValueError, match=r"pickled Python code|not a file of torch"):
        read_weights(tmp_path / "a.pt")


def test_settings_larger_than_the_weights(tmp_path):
    """A network of the size that a file claims is not built before its weights are seen to be there."""
    path = tmp_path / "a.safetensors"
    save_network(
        path,
        Saved("conv-generator", {"latent": 2, "width": 2}, saved.build("conv-generator", {"latent": 2, "width": 2})),
    )
    assert load_network(path).settings == {"latent": 2, "width": 2}
    tensors, _ = saved._read(path)
    for settings, message in [
        ({"latent": 2, "width": 10**5}, "does not fit the weights"),
        ({"latent": 10**18, "width": 10**18}, "no network can have its settings|do not fit it"),
    ]:
        text = json.dumps({"kind": "conv-generator", "settings": settings, "facts": {}})
        head = {"format": "genprior-network-1", "network": text, "sha256": saved._digest(tensors, text)}
        path.write_bytes(save(tensors, metadata=head))
        with pytest.raises(ValueError, match=message):
            load_network(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 1, "settings": {}, "facts": {}}', "[" * 10**5])
def test_a_network_without_a_description(tmp_path, text):
    tensors = {"x": torch.zeros(1)}
    head = {"format": "genprior-network-1", "network": text, "sha256": saved._digest(tensors, text)}
    (tmp_path / "a.safetensors").write_bytes(save(tensors, metadata=head))
    with pytest.raises(ValueError, match=r"a\.safetensors does not say which network it holds"):
        load_network(tmp_path / "a.safetensors")


@pytest.mark.parametrize("read", [load_network, read_weights])
def test_a_list_of_tensors_that_is_too_long(tmp_path, read):
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 10**8) + b"{")
        file.truncate(10**8 + 100)
    with pytest.raises(ValueError, match=r"a\.safetensors has a list of contents of 100 MB"):
        read(tmp_path / "a.safetensors")
