"""Files of every kind that we read, honest, spoilt and hostile, and the readers that meet them.

``tools/fuzz_readers.py`` runs many of these in processes of their own and measures their memory; ``test_fuzz.py`` runs a few.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import struct
import tarfile
import tempfile
import warnings
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image
from safetensors import numpy as safetensors
from torch import nn

from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.images import WRITTEN_AS
from genprior.files.single import read_array, read_image
from genprior.jobs.ledger import Ledger
from genprior.models import saved
from genprior.models.bundled import load_generator
from genprior.models.foreign import open_generator
from genprior.models.weights import load_weights
from genprior.training.data import image_files
from genprior.training.data.digits import _local

SHAPE = (1, 4, 4)
VALUES = np.linspace(0, 1, 32, dtype=np.float32).reshape(2, *SHAPE)
_FORMATS = {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm"}


def module() -> nn.Module:
    """The module whose weights are in the files."""
    return nn.Sequential(nn.Linear(4, 16), nn.Sigmoid(), nn.Unflatten(1, SHAPE))


def _bytes(write: Callable[[io.BytesIO], object]) -> bytes:
    store = io.BytesIO()
    write(store)
    return store.getvalue()


def _image(ending: str, mode: str = "L") -> bytes:
    pixels = Image.fromarray((VALUES[0, 0] * 255).astype(np.uint8)).convert(mode)
    return _bytes(lambda store: pixels.save(store, format=_FORMATS.get(ending, ending)))


def _hdf5(**packing: object) -> bytes:
    def write(store: io.BytesIO) -> None:
        with h5py.File(store, "w") as file:
            file.create_dataset("group/a", data=VALUES, **packing)
            file["labels"] = np.arange(2)

    return _bytes(write)


def _sound() -> bytes:
    def write(store: io.BytesIO) -> None:
        with wave.open(store, "wb") as sound:
            sound.setnchannels(2)
            sound.setsampwidth(3)
            sound.setframerate(8000)
            sound.writeframes(bytes(range(96)))

    return _bytes(write)


def _network() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"latent": 2, "width": 1}
        saved.save_network(
            Path(folder) / "a", saved.Saved("conv-generator", settings, saved.build("conv-generator", settings))
        )
        return (Path(folder) / "a").read_bytes()


def _program() -> bytes:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = f"{folder}/a.pt"
        torch.jit.trace(module(), torch.zeros(2, 4)).save(path)
        return Path(path).read_bytes()


def _archive(kind: str) -> bytes:
    def write(store: io.BytesIO) -> None:
        if kind == "zip":
            with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("a.png", _image("png"))
        else:
            with tarfile.open(fileobj=store, mode=f"w:{kind}") as archive:
                entry = tarfile.TarInfo("a.png")
                entry.size = len(_image("png"))
                archive.addfile(entry, io.BytesIO(_image("png")))

    return _bytes(write)


def _shard() -> bytes:
    def write(store: io.BytesIO) -> None:
        with tarfile.open(fileobj=store, mode="w") as archive:
            contents = {
                "000.png": _image("png"),
                "000.json": b"{}",
                "00é.npy": _bytes(lambda store: np.save(store, VALUES[0])),
                "002.cls": b"1",
                "002.tif": _image("tif"),
            }
            for name, content in contents.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))

    return _bytes(write)


def _record() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Ledger(Path(folder), {}).write_batch(0, {"items": [{"name": "a"}], "seconds": 1.0})
        return (Path(folder) / ".job" / "records-000000.log").read_bytes()


def _read_items(path: Path, expected: Expected = Expected(SHAPE)) -> None:  # noqa: B008 - it is frozen
    """Read, and see that every item has the right shape or a reason."""
    items = open_items([path], expected)
    for item in items.read(0, min(len(items), 4)):
        assert item.value is None or item.value.shape == SHAPE
        assert (item.value is None) == bool(item.problem)


def _read_shard(path: Path) -> None:
    """Read, and write what was read."""
    items = open_items([path], Expected(SHAPE))
    loaded = items.read(0, len(items))
    work = path.parent / "work"
    work.mkdir(exist_ok=True)
    outputs = Outputs(items, path.parent / "out", work, SHAPE)
    outputs.begin(len(items))
    outputs.write(0, [item.value for item in loaded])
    outputs.finish(0)
    with tarfile.open(path.parent / "out" / path.name) as archive:
        assert len(archive.getmembers()) >= sum(item.value is not None for item in loaded)


def _read_image(path: Path) -> None:
    """As it is, and scaled."""
    with contextlib.suppress(ValueError):
        _read_items(path)
    _read_items(path, Expected(SHAPE, resize=True))


def _read_record(path: Path) -> None:
    """A damaged record is set aside, never an error."""
    (path.parent / ".job").mkdir(exist_ok=True)
    place = path.parent / ".job" / "records-000000.log"
    place.write_bytes(path.read_bytes())
    record = Ledger(path.parent, {}).batch(0)
    assert record == {"items": [{"name": "a"}], "seconds": 1.0} or record is None


def _read_idx(path: Path) -> None:
    try:
        _local(path.parent, path.name.removesuffix(".gz"))
    except (EOFError, zlib.error) as problem:  # who calls it takes any error for a reason to try elsewhere
        raise ValueError(str(problem)) from problem


def _saved(old: bool) -> bytes:
    return _bytes(lambda store: torch.save(module().state_dict(), store, _use_new_zipfile_serialization=not old))


Reader = Callable[[Path], object]


def kinds() -> dict[str, tuple[str, bytes, Reader]]:
    """For each kind of file: a name for it, an honest one, and what reads it."""
    found: dict[str, tuple[str, bytes, Reader]] = {}
    for ending in WRITTEN_AS:
        found[f"image {ending[1:]}"] = (f"x{ending}", _image(ending[1:]), _read_image)
    found["image rgba"] = ("x.png", _image("png", "RGBA"), _read_image)
    found["mask"] = ("x.png", _image("png"), lambda path: read_image(path, 1))
    found["npy"] = ("x.npy", _bytes(lambda store: np.save(store, VALUES)), _read_items)
    found["npz"] = ("x.npz", _bytes(lambda store: np.savez_compressed(store, a=VALUES, b=VALUES)), _read_items)
    found["labels"] = ("x.npy", _bytes(lambda store: np.save(store, np.arange(9))), lambda path: read_array(path, "ui"))
    found["safetensors"] = ("x.safetensors", safetensors.save({"a": VALUES, "b": VALUES[0]}), _read_items)
    found["h5"] = ("x.h5", _hdf5(), _read_items)
    found["h5 gzip"] = ("x.h5", _hdf5(chunks=(1, *SHAPE), compression=4, shuffle=True), _read_items)
    found["h5 lzf"] = ("x.hdf5", _hdf5(chunks=(1, *SHAPE), compression="lzf", fletcher32=True), _read_items)
    found["wav"] = ("x.wav", _sound(), _read_items)
    found["csv"] = ("x.csv", b"a,b\n" + b"0.25,0.5\n" * 16, _read_items)
    fill: Reader = lambda path: load_weights(module(), path)  # noqa: E731
    found["shard"] = ("x.tar", _shard(), _read_shard)
    found["weights"] = ("x.pt", _saved(old=False), fill)
    found["weights old"] = ("x.pt", _saved(old=True), fill)
    arrays = {name: tensor.numpy() for name, tensor in module().state_dict().items()}
    found["weights safetensors"] = ("x.safetensors", safetensors.save(arrays), fill)
    found["network"] = ("x.safetensors", _network(), load_generator)
    found["script"] = ("x.pt", _program(), open_generator)
    found["zip of images"] = ("x.zip", _archive("zip"), image_files)
    found["tar.gz of images"] = ("x.tar.gz", _archive("gz"), image_files)
    found["idx"] = ("x.gz", gzip.compress(bytes(100)), _read_idx)
    found["record"] = ("x.log", _record(), _read_record)
    return found


def mutant(whole: bytes, chance: random.Random) -> bytes:
    """An honest file spoilt in one of several ways."""
    ways = [_random, _cut, _changed, _changed, _numbers, _swapped, _head]
    if whole.startswith(b"PK"):
        ways += [_inside_zip] * 4
    if whole[257:262] == b"ustar":
        ways += [_inside_tar] * 4
    if whole[8:9] == b"{":
        ways += [_inside_json] * 4
    return chance.choice(ways)(whole, chance)


def _random(whole: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(300))


def _cut(whole: bytes, chance: random.Random) -> bytes:
    return whole[: chance.randrange(len(whole) + 1)]


def _head(whole: bytes, chance: random.Random) -> bytes:
    return whole[:16] + chance.randbytes(chance.randrange(300))


def _changed(whole: bytes, chance: random.Random) -> bytes:
    content = bytearray(whole)
    for _ in range(chance.randint(1, 6)):
        content[chance.randrange(len(content))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(content)


def _numbers(whole: bytes, chance: random.Random) -> bytes:
    """Large, negative and odd numbers, as sizes and offsets."""
    content = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        form = chance.choice(["<H", ">H", "<I", ">I", "<Q", ">Q"])
        size = struct.calcsize(form)
        value = chance.choice([0, 1, 2**31, 2**31 - 1, 2**32 - 1, 2**62, 10**9, 2**16 - 1]) % 2 ** (8 * size)
        if len(content) > size:
            struct.pack_into(form, content, chance.randrange(len(content) - size), value)
    return bytes(content)


def _swapped(whole: bytes, chance: random.Random) -> bytes:
    """A piece moved, left out or repeated."""
    first, second = sorted(chance.randrange(len(whole) + 1) for _ in range(2))
    piece = whole[first:second]
    return chance.choice([whole[:first] + whole[second:], whole[:second] + piece + whole[second:], piece])


def _inside_zip(whole: bytes, chance: random.Random) -> bytes:
    """One record spoilt and the checksums repaired, so that readers go on to what is inside."""
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            records = [(name, archive.read(name)) for name in archive.namelist()]
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return whole
    number = chance.randrange(len(records))
    name, content = records[number]
    if content:
        records[number] = (name, mutant(content, chance) if chance.random() < 0.9 else b"")
    packing = chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that stand twice

        def write(store: io.BytesIO) -> None:
            with zipfile.ZipFile(store, "w", packing) as archive:
                for name, content in records:
                    archive.writestr(name, content)

        return _bytes(write)


def _inside_tar(whole: bytes, chance: random.Random) -> bytes:
    """One header spoilt and its checksum repaired, or one member spoilt."""
    content = bytearray(whole)
    heads = [place for place in range(0, len(whole), 512) if whole[place + 257 : place + 262] == b"ustar"]
    start = chance.choice(heads)
    if chance.random() < 0.3:
        size = int(whole[start + 124 : start + 135] or b"0", 8) if whole[start + 124 : start + 135].isdigit() else 0
        spoilt = mutant(whole[start + 512 : start + 512 + size], chance) if size else b""
        content[start + 512 : start + 512 + size] = spoilt[:size].ljust(size, b"\0")
        return bytes(content)
    first, size = chance.choice([(0, 100), (124, 12), (124, 12), (156, 1), (156, 1), (157, 100), (345, 155)])
    numbers = [b"\xff" * 12, b"\x80" + bytes(10) + b"\x01", b"7" * 11]
    value = chance.choice([*numbers, b"0", b"1", b"x", b"L", b"S", b"g", b"5", b"../a.png"])
    content[start + first : start + first + size] = value[:size].ljust(size, b"\0")
    content[start + 148 : start + 156] = b" " * 8
    content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    return bytes(content)


def _inside_json(whole: bytes, chance: random.Random) -> bytes:
    """The head of a .safetensors file with one value replaced."""
    length = int.from_bytes(whole[:8], "little")
    try:
        head = json.loads(whole[8 : 8 + length])
    except ValueError:
        return whole
    place = head
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            place[key] = chance.choice([None, -1, 0, 2**40, 2**63, "F32", "BOOL", "", [], {}, [2**31, 2**31], 1.5])
            break
        place = place[key]
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + whole[8 + length :]
