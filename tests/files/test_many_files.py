"""More files than a process may have open, and what is not a file's fault."""

import errno
import os

import numpy as np
import pytest

from genprior.files import Outputs, open_items
from genprior.files.guard import Unreadable, reading
from genprior.files.stream import Expected

resource = pytest.importorskip("resource")

SHAPE = (1, 2, 3)
FILES = 40


@pytest.fixture
def few_descriptors():
    """Only some 20 files more than are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def values(number):
    return np.full((2, *SHAPE), number / FILES, np.float32)


WRITE = {
    "npy": lambda path, number: np.save(f"{path}.npy", values(number)),
    "npz": lambda path, number: np.savez(f"{path}.npz", x=values(number)),
}


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("batch", [7, 2 * FILES])
def test_many_array_files(tmp_path, few_descriptors, kind, batch):
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        WRITE[kind](tmp_path / "in" / f"{number:03d}", number)
    items = open_items([tmp_path / "in"], Expected(SHAPE))
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.begin(batch)
    for start in range(0, len(items), batch):
        loaded = items.read(start, start + batch)
        assert not [item.problem for item in loaded if item.value is None]
        outputs.write(start, [item.value for item in loaded])
        outputs.finish(start // batch)
    for number in range(FILES):
        found = np.load(tmp_path / "out" / f"{number:03d}.{kind}")
        assert np.array_equal(found["x"] if kind == "npz" else found, values(number))


@pytest.mark.parametrize("ending", ["npz", "safetensors", "h5"])
def test_many_arrays_in_one_file(tmp_path, few_descriptors, ending):
    from safetensors.numpy import load_file, save_file

    arrays = {f"{number:03d}": values(number) for number in range(FILES)}
    path = tmp_path / f"a.{ending}"
    if ending == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file.update(arrays)
    else:
        np.savez(path, **arrays) if ending == "npz" else save_file(arrays, path)
    items = open_items([path], Expected(SHAPE))
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.write(0, [item.value for item in items.read(0, len(items))])
    outputs.begin(len(items))
    outputs.finish(0)
    if ending != "h5":
        found = (
            np.load(tmp_path / "out" / "a.npz") if ending == "npz" else load_file(tmp_path / "out" / "a.safetensors")
        )
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())


def test_packed_arrays_are_closed_when_left(tmp_path):
    np.savez(tmp_path / "a.npz", x=values(1), y=values(2))
    items = open_items([tmp_path / "a.npz"], Expected(SHAPE))
    first, second = (part.array for part in items.parts)
    assert first._stream is None and second._stream is None
    items.read(0, 1)
    assert first._stream is not None
    items.read(2, 3)
    assert first._stream is None and float(items.read(1, 2)[0].value.max()) == pytest.approx(1 / FILES)


SYSTEM = [
    errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENOENT, errno.EACCES, errno.ENODEV
]  # fmt: skip


@pytest.mark.parametrize("code", SYSTEM)
def test_what_the_system_cannot_do_is_not_the_files_fault(code):
    with pytest.raises(OSError, match=r"system.*: 'a\.png'") as caught, reading("a.png", "a picture"):
        raise OSError(code, "system")
    assert caught.value.errno == code


@pytest.mark.parametrize("problem", [OSError(errno.EINVAL, "strange"), OSError("cut"), ValueError("cut")])
def test_all_else_is_the_files_fault(problem):
    with pytest.raises(Unreadable, match="damaged"), reading("a.png", "a picture"):
        raise problem


@pytest.mark.parametrize("code", SYSTEM)
def test_a_disk_that_drops_out_stops_the_job(tmp_path, monkeypatch, code):
    np.save(tmp_path / "a.npy", values(0))
    items = open_items([tmp_path / "a.npy"], Expected(SHAPE))

    def rows(start, stop):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(items.parts[0].array, "rows", rows)
    with pytest.raises(OSError, match=r"a\.npy") as caught:
        items.read(0, 2)
    assert caught.value.errno == code
    monkeypatch.undo()
    assert all(item.value is not None for item in items.read(0, 2)), "and goes on when it is back"


def test_finishing_looks_at_every_file_once(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        np.save(tmp_path / "in" / f"{number:03d}.npy", values(number))
    items = open_items([tmp_path / "in"], Expected(SHAPE))
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    asked = []
    monkeypatch.setattr(outputs, "_row_file", lambda number: asked.append(number) or tmp_path / f"none-{number}")
    outputs.begin(1)
    for batch in range(2 * FILES):
        outputs.finish(batch)
    assert len(asked) <= 3 * FILES
