"""Items in another process: small, without open files, read in the same way, and what cannot be read there is named."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

import genprior as gp
from genprior.files import open_items
from genprior.files.expected import Expected

h5py = pytest.importorskip("h5py")

SHAPE = (1, 6, 8)
VALUES = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)


def grey(path, number=0):
    Image.fromarray((VALUES[number, 0] * 255).round().astype(np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One of everything, in the working folder."""
    monkeypatch.chdir(tmp_path)
    home = Path("in")
    (home / "a" / "b").mkdir(parents=True)
    (home / "a.b").mkdir()
    for place in ("a/1.png", "a/b/2.PNG", "a.b/3.gif", os.fsdecode("é.webp".encode())):
        grey(home / place)
    Image.fromarray(np.arange(48, dtype=np.uint16).reshape(6, 8)).save(home / "deep.png")
    np.save(home / "c.npy", VALUES)
    np.savez_compressed(home / "d.npz", flat=VALUES.reshape(5, -1), last=VALUES[0].transpose(1, 2, 0))
    save_file({"q": VALUES[:, 0], "s": VALUES[0]}, home / "e.safetensors")
    with h5py.File(home / "f.h5", "w") as file:
        file["group/many"] = VALUES
    (home / "no.png").write_bytes(b"no")
    return home


def there(items):
    """The items in a process in another folder."""
    sent = pickle.dumps(items)
    os.chdir("/")
    return pickle.loads(sent)


def told(items):
    return [(item.name, None if item.value is None else item.value.tolist()) for item in items.read(0, len(items))]


def test_the_same_items_in_another_process(folder):
    items = open_items([folder], Expected(SHAPE), skip=True)
    items.read(7, 9)  # leaves a packed file open
    assert items._reading is not None
    expected, parts = told(items), [*items.parts]
    items.read(7, 9)
    copy = there(items)
    assert told(copy) == expected and copy.fingerprint() == items.fingerprint()
    assert [(part.label, part.count, part.deep, part.version) for part in copy.parts] == [
        (part.label, part.count, part.deep, part.version) for part in parts
    ]
    assert copy.notes == items.notes and copy.missing(0, len(copy)) == []


def test_columns_hold_what_was_put_in(folder):
    found = {part.place: part for part in open_items([folder], Expected(SHAPE), skip=True).parts}
    assert [*found] == [str(path) for path in sorted(map(Path, found))], "folder by folder"
    assert {Path(place).name: part.output for place, part in found.items() if part.array is None} == {
        "1.png": "a/1.png", "2.PNG": "a/b/2.png", "3.gif": "a.b/3.png", "é.webp": "é.webp", "deep.png": "deep.png",
        "no.png": "no.png",
    }  # fmt: skip
    for place, part in found.items():
        facts = os.stat(place)
        assert (part.version.size, part.version.time) == (facts.st_size, facts.st_mtime_ns)
        assert part.deep == place.endswith("deep.png") and bool(part.problem) == place.endswith("no.png")


def test_what_another_process_does_not_see(folder, tmp_path):
    items = open_items([folder], Expected(SHAPE), skip=True)
    copy = there(items)
    os.chdir(tmp_path)
    names = [item.name for item in copy.read(0, len(copy))]
    Path("in/a/1.png").unlink()
    os.utime("in/d.npz", (1, 1))
    first, second = names.index("a/1.png"), names.index("d.npz/flat[0]")
    for start, stop, missing in (
        (0, len(names), ["1.png", "d.npz"]), (first, first + 1, ["1.png"]), (first + 1, second, []), (second, second, []),
        (second + 2, second + 3, ["d.npz"]), (second + 6, len(names) + 9, []),
    ):  # fmt: skip
        assert [path.name for path in copy.missing(start, stop)] == missing


def test_a_file_with_fewer_rights_there(folder, monkeypatch):
    items = open_items([folder / "c.npy"], Expected(SHAPE))
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert items.missing(0, 1) == [folder / "c.npy"]


def test_many_images_are_small(tmp_path):
    grey(tmp_path / "image-000000.png")
    for number in range(1, 2000):
        os.link(tmp_path / "image-000000.png", tmp_path / f"image-{number:06d}.png")
    items = open_items([tmp_path], Expected(SHAPE))
    assert len(items) == 2000 and len(pickle.dumps(items)) < 20 * len(items)


def test_an_operator_is_not_sent(folder):
    known = torch.zeros(SHAPE[1:], dtype=torch.bool)
    known[2:] = True
    mask = gp.operators.Mask(known, SHAPE)
    matrix = gp.operators.Gaussian(48, SHAPE, seed=0)
    torn = VALUES.copy()
    torn[:, :, :2] = np.nan
    torn[3, 0, 4, 4] = np.nan
    np.save("torn.npy", torn)
    items = open_items([Path("torn.npy").resolve()], Expected(SHAPE, operator=mask))
    copy = there(items)
    assert [item.value is None for item in copy.read(0, 5)] == [False, False, False, True, False]
    assert torch.equal(copy.read(1, 2)[0].value, items.read(1, 2)[0].value)
    plain = len(pickle.dumps(Expected((48,), measured=True)))
    assert len(pickle.dumps(Expected((48,), measured=True, operator=matrix).portable())) < plain + 2000


def test_complex_measurements_and_their_mask(folder):
    fourier = gp.operators.SubsampledFourier(torch.arange(48).reshape(6, 8) % 3 == 0, SHAPE)
    both = gp.operators.Stack(fourier, gp.operators.Mask(torch.ones(SHAPE[1:], dtype=torch.bool), SHAPE))
    for operator in (fourier, both):
        expected = Expected(tuple(operator.measurement_shape), measured=True, complex_too=True, operator=operator)
        y = torch.randn(3, *expected.shape, dtype=torch.complex64)
        assert torch.equal(expected.portable().known(y), expected.known(y))


def test_what_is_far_out_is_known_there_too(folder):
    blur = gp.operators.Blur(torch.ones(5, 5), SHAPE)
    expected = Expected(SHAPE, operator=blur).portable()
    assert not expected.fault(torch.full(SHAPE, 12.0))
    assert expected.fault(torch.full(SHAPE, 255.0)) == Expected(SHAPE, operator=blur).fault(torch.full(SHAPE, 255.0))
