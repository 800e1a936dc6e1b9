"""One array of a file, by its key: ``arrays.npz:key``; names with colons in them; keys that are not there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from genprior.files import Outputs, open_items
from genprior.files.named import split_key
from genprior.files.stream import Expected

h5py = pytest.importorskip("h5py")

SHAPE = (1, 4, 6)
VALUES = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
ARRAYS = {"clean": VALUES[:2], "noisy": VALUES[2:], "labels": np.arange(3, dtype=np.float32)}


def save(path, **arrays):
    """Whatever the ending says."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file(arrays, path)
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    return path


def load(path):
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) if path.suffix == ".npz" else h5py.File(path) as file:
        return {key: np.asarray(file[key]) for key in file}


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".h5", ".hdf5"])
def test_one_array_of_several(tmp_path, ending):
    path = save(tmp_path / f"scans{ending}", **ARRAYS)
    items = open_items([f"{path}:noisy"], Expected(SHAPE))
    assert [item.name for item in items.read(0, 9)] == [f"scans{ending}/noisy[{row}]" for row in range(3)]
    assert torch.equal(torch.stack([item.value for item in items.read(0, 3)]), torch.from_numpy(VALUES[2:]))
    assert items.notes == (), "what was not asked for is not passed over"

    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.write(0, [item.value for item in items.read(0, 3)])
    outputs.begin(3)
    outputs.finish(0)
    found = load(tmp_path / "out" / f"scans{ending}")
    assert list(found) == ["noisy"] and np.array_equal(found["noisy"], VALUES[2:])


def test_several_arrays_of_one_file_stay_together(tmp_path):
    """In the order in which they were named, in one file, also where another file was named in between."""
    path, other = save(tmp_path / "scans.npz", **ARRAYS), tmp_path / "other.npy"
    np.save(other, VALUES[0])
    items = open_items([f"{path}:noisy", other, f"{path}:clean"], Expected(SHAPE))
    names = [item.name for item in items.read(0, 9)]
    assert names == [
        *(f"scans.npz/noisy[{row}]" for row in range(3)),
        "scans.npz/clean[0]",
        "scans.npz/clean[1]",
        "other.npy",
    ]
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.write(0, [item.value for item in items.read(0, 6)])
    outputs.begin(6)
    outputs.finish(0)
    found = load(tmp_path / "out" / "scans.npz")
    assert set(found) == {"clean", "noisy"} and np.array_equal(found["clean"], VALUES[:2])


def test_groups_of_hdf5(tmp_path):
    path = save(tmp_path / "scans.h5", **{"day/one": VALUES, "day/two:late": VALUES[:1]})
    for key, count in {"day/one": 5, "/day/one": 5, "day/two:late": 1}.items():
        assert len(open_items([f"{path}:{key}"], Expected(SHAPE))) == count


def test_what_lies_beside_does_not_matter(tmp_path):
    """Labels as Python objects would refuse the whole file; the array that is named can be read."""
    path = tmp_path / "scans.npz"
    np.savez(path, images=VALUES, names=np.array(["a", None], dtype=object))
    with pytest.raises(ValueError, match="names holds Python objects"):
        open_items([path], Expected(SHAPE))
    assert len(open_items([f"{path}:images"], Expected(SHAPE))) == 5


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["scans.npz:images"], r"scans\.npz has no array 'images': give one of clean, labels, noisy$"),
        (["scans.npz:"], r"scans\.npz has no array '': give one of clean, labels, noisy$"),
        (["scans.npz:labels"], r"scans\.npz, labels has shape \(3,\), expected \(1, 4, 6\)"),
        (["scans.npz:clean", "scans.npz:clean"], r"scans\.npz:clean was given twice: give every array once"),
        (["scans.npz", "scans.npz:clean"], r"scans\.npz was given twice: give every file once"),
        ([".", "scans.npz:clean"], r"scans\.npz was given twice: give every file once"),
        (["one.npy:x"], r"one\.npy holds one array, which has no key: leave out :x$"),
        (["one.png:x"], r"one\.png is an image, which has no named arrays: leave out :x$"),
        (["gone.npz:clean"], r"there is no file or folder gone\.npz:clean$"),
        (["many.npz:x"], r"give one of k00, k01, k02, k03, k04, k05, k06, k07 and 4 more$"),
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_refusals(tmp_path, monkeypatch, inputs, message, skip):
    monkeypatch.chdir(tmp_path)
    save(Path("scans.npz"), **ARRAYS)
    save(Path("many.npz"), **{f"k{number:02d}": VALUES for number in range(12)})
    np.save("one.npy", VALUES)
    Image.fromarray((VALUES[0, 0] * 255).astype(np.uint8)).save("one.png")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_items(inputs, Expected(SHAPE), skip=skip)


def test_colons_in_names(tmp_path, monkeypatch):
    """What exists as it is written goes first; then the longest name of a file."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "a.npz:b", "C:data.npz", "in:folder"):
        Path(name).mkdir() if name == "in:folder" else Path(name).touch()
    assert split_key(Path("a.npz")) == (Path("a.npz"), None)
    assert split_key(Path("a.npz:b")) == (Path("a.npz:b"), None)
    assert split_key(Path("a.npz:b:c")) == (Path("a.npz:b"), "c")
    assert split_key(Path("a.npz:c:d")) == (Path("a.npz"), "c:d")
    assert split_key(Path("C:data.npz")) == (Path("C:data.npz"), None)
    assert split_key(Path("C:data.npz:key")) == (Path("C:data.npz"), "key")
    assert split_key(Path("in:folder")) == (Path("in:folder"), None)
    assert split_key(Path("gone:folder:x.npz")) == (Path("gone:folder:x.npz"), None)


def test_files_and_folders_with_colons_are_read(tmp_path):
    folder = tmp_path / "12:30"
    folder.mkdir()
    save(folder / "at 12:31.npz", **ARRAYS)
    assert len(open_items([folder], Expected(SHAPE))) == 5
    assert len(open_items([folder / "at 12:31.npz"], Expected(SHAPE))) == 5
    assert len(open_items([f"{folder}/at 12:31.npz:clean"], Expected(SHAPE))) == 2


def test_a_folder_is_read_by_name_whatever_the_file_system_says(tmp_path, monkeypatch):
    names = [f"{letter}.npy" for letter in "dbacfe"]
    for name in names:
        np.save(tmp_path / name, VALUES[0])
    listed = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(listed(self, pattern), reverse=True))
    items = open_items([tmp_path], Expected(SHAPE))
    assert [item.name for item in items.read(0, 9)] == sorted(names)


@pytest.mark.parametrize("name", ["a.zarr", "zarr.json", ".zarray"])
def test_a_zarr_store_is_refused_with_the_way_out(tmp_path, name):
    store = tmp_path / "a.zarr" if name == "a.zarr" else tmp_path / "store"
    store.mkdir()
    if store.name == "store":
        (store / name).write_text("{}")
    with pytest.raises(ValueError, match=rf"{store.name} is a Zarr store, .*one \.npy file"):
        open_items([store], Expected((1, 4, 4)))
    with pytest.raises(ValueError, match=r"^s3://b/x\.zarr is a Zarr store"):
        open_items(["s3://b/x.zarr"], Expected((1, 4, 4)))
