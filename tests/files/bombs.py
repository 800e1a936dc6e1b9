"""Small files that stand for gigabytes, or for hours: each must be refused, or read, in little memory and time."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from genprior.models import saved
from tests.files.mutants import SHAPE, kinds

Write = Callable[[Path], object]
_MANY = 3 * 10**9


def bombs() -> dict[str, tuple[str, Write, str]]:
    """For each bomb: a name for the file, what writes it, and the kind of file, whose reader meets it."""
    return {
        "h5 chunk of 4 GB": ("x.h5", _chunk(2**26, 2**32 - 2**16), "h5"),
        "h5 chunk longer than it says": ("x.h5", _chunk(1, _MANY), "h5"),
        "h5 chunk just within the limit": ("x.h5", _chunk(2**21, 2**27), "h5"),
        "h5 never written": ("x.h5", _unwritten, "h5"),
        "h5 virtual": ("x.h5", _virtual, "h5"),
        "npz of 3 GB": ("x.npz", _npz(b"\x93NUMPY\x01\x00" + _npy_head((_MANY // 64, *SHAPE))), "npz"),
        "npz with a head of 3 GB": ("x.npz", _npz(b"\x93NUMPY\x02\x00" + struct.pack("<I", _MANY)), "npz"),
        "npz of one large item": ("x.npz", _npz(b"\x93NUMPY\x01\x00" + _npy_head((1, _MANY // 4))), "npz"),
        "npy without content": (
            "x.npy",
            lambda path: path.write_bytes(b"\x93NUMPY\x01\x00" + _npy_head((10**9,))),
            "labels",
        ),
        "safetensors of a million": ("x.safetensors", _tensors(10**6), "safetensors"),
        "safetensors of 50000": ("x.safetensors", _tensors(50_000), "safetensors"),
        "weights of a million": ("x.safetensors", _tensors(10**6), "weights safetensors"),
        "weights, deflated": ("x.pt", _weights, "weights"),
        "weights as a generator": ("x.pt", _weights, "script"),
        "weights with bytes": ("x.pt", lambda path: torch.save({"a": _Call(bytearray, _MANY)}, path), "weights"),
        "weights, expanded": ("x.pt", lambda path: torch.save({"a": torch.zeros(1).expand(_MANY)}, path), "weights"),
        "script, deflated": ("x.pt", _records("data/0"), "script"),
        "script with long code": ("x.pt", _records("constants.pkl"), "script"),
        "network wider than its weights": ("x.safetensors", _wide, "network"),
        "png of 4 gigapixels": ("x.png", _png(2**16, 2**16), "image png"),
        "png of 67 megapixels": ("x.png", _png(2**13, 2**13), "image png"),
        "png of 67 megapixels, RGBA": ("x.png", _png(2**13, 2**13, 6, 8), "image png"),
        "png of 67 megapixels, 16 bits": ("x.png", _png(2**13, 2**13, 0, 16), "image png"),
        "mask of 67 megapixels": ("x.png", _png(2**13, 2**13), "mask"),
        "webp of 67 megapixels": ("x.webp", _large("webp"), "image webp"),
        "webp of 33 megapixels": ("x.webp", _large("webp", side=5792), "image webp"),
        "tiff of 67 megapixels": ("x.tif", _large("tiff", compression="tiff_adobe_deflate"), "image tif"),
        "gif of 67 megapixels": ("x.gif", _large("gif"), "image gif"),
        "jpeg of 67 megapixels": ("x.jpg", _large("jpeg", progressive=True, mode="RGB"), "image jpg"),
        "tiff of a million frames": ("x.tif", _frames, "image tif"),
        "zip of 3 GB": ("x.zip", _zip, "zip of images"),
        "zip of large images": ("x.zip", _zip_of_images, "zip of images"),
        "zip of large deep images": ("x.zip", _zip_of_deep_images, "zip of images"),
        "zip of a million names": ("x.npz", _names, "npz"),
        "tar.gz of 3 GB": ("x.tar.gz", _tar, "tar.gz of images"),
        "tar with a header of 3 GB": ("x.tar", _header, "shard"),
        "tar with an image of 3 GB": ("x.tar", _member, "shard"),
        "tar with an array of 3 GB": ("x.tar", lambda path: _member(path, "a.npy"), "shard"),
        "tar of two million members": ("x.tar", _members, "shard"),
        "idx of 3 GB": ("x.gz", _gzip, "idx"),
        "record of 20 MB of brackets": ("x.json", lambda path: path.write_bytes(b"[" * 2 * 10**7), "record"),
    }


class _Call:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return (self.call[0], self.call[1:])


def _zeros(size: int, step: int = 2**24) -> Iterator[bytes]:
    for start in range(0, size, step):
        yield bytes(min(step, size - start))


def _deflated(size: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join([*(packer.compress(piece) for piece in _zeros(size)), packer.flush()])


def _chunk(rows: int, size: int) -> Write:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            data = file.create_dataset(
                "x", (2, *SHAPE), "f4", maxshape=(None, *SHAPE), chunks=(min(rows, 2**26 - 1), *SHAPE), compression=9
            )
            data.id.write_direct_chunk((0, 0, 0, 0), _deflated(size))

    return write


def _unwritten(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (10**12, *SHAPE), "f4", chunks=(10, *SHAPE))


def _virtual(path: Path) -> None:
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((2, *SHAPE), "f4")
        layout[:] = h5py.VirtualSource("/dev/zero", "x", shape=(2, *SHAPE))
        file.create_virtual_dataset("x", layout)


def _npy_head(shape: tuple[int, ...]) -> bytes:
    store = io.BytesIO()
    np.lib.format.write_array_header_1_0(store, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return store.getvalue()[8:]


def _npz(head: bytes) -> Write:
    def write(path: Path) -> None:
        packing = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
        with zipfile.ZipFile(path, "w", **packing) as archive, archive.open("x.npy", "w", force_zip64=True) as file:
            for piece in (head, *_zeros(_MANY)):
                file.write(piece)

    return write


def _tensors(count: int) -> Write:
    def write(path: Path) -> None:
        head = {f"{n}": {"dtype": "F32", "shape": SHAPE, "data_offsets": [64 * n, 64 * n + 64]} for n in range(count)}
        text = json.dumps(head).encode()
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + 64 * count)

    return write


def _weights(path: Path) -> None:
    store = io.BytesIO()
    torch.save({"a": torch.zeros(4)}, store)
    _repack(store.getvalue(), path, "data/0")


def _records(large: str) -> Write:
    return lambda path: _repack(kinds()["script"][1], path, large)


def _repack(content: bytes, path: Path, large: str) -> None:
    """The same archive with one record of 3 GB, deflated."""
    packing = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(path, "w", **packing) as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=name.endswith(large)) as file:
                for piece in _zeros(_MANY) if name.endswith(large) else [old.read(name)]:
                    file.write(piece)


def _wide(path: Path) -> None:
    path.write_bytes(kinds()["network"][1])
    tensors, head = saved._read(path)
    text = json.dumps({"kind": "conv-generator", "settings": {"latent": 10**5, "width": 10**5}, "facts": {}})
    path.write_bytes(save(tensors, metadata=head | {"network": text, "sha256": saved._digest(tensors, text)}))


def _png(width: int, height: int, colour: int = 0, bits: int = 1) -> Write:
    def write(path: Path) -> None:
        row = 1 + width * bits * {0: 1, 6: 4}[colour] // 8
        parts = (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)),
            (b"IDAT", _deflated(row * height)),
        )
        with path.open("wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n")
            for name, body in (*parts, (b"IEND", b"")):
                file.write(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))

    return write


def _large(form: str, mode: str = "L", side: int = 2**13, **options: object) -> Write:
    return lambda path: Image.new(mode, (side, side)).save(path, format=form, **options)


def _frames(path: Path) -> None:
    first = kinds()["image tif"][1]
    content = bytearray(first)
    place = struct.unpack_from("<I", content, 4)[0]
    struct.pack_into("<I", content, place + 2 + 12 * struct.unpack_from("<H", content, place)[0], len(content))
    start = len(content)
    path.write_bytes(content + b"".join(struct.pack("<HI", 0, start + 6 * (n + 1)) for n in range(10**6)) + bytes(6))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in "ab":
            with archive.open(f"{name}.png", "w", force_zip64=True) as file:
                for piece in _zeros(_MANY // 2):
                    file.write(piece)


def _zip_of_deep_images(path: Path) -> None:
    _zip_of_images(path, 0, 16)


def _zip_of_images(path: Path, colour: int = 6, bits: int = 8) -> None:
    _png(2**13, 2**13, colour, bits)(path.with_suffix(".png"))
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(4):
            archive.write(path.with_suffix(".png"), f"{number}.png")


def _names(path: Path) -> None:
    """A list of contents with a million names of nothing."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0)
    names = b"".join(entry + b"%05x.npy" % (n % 16**5) for n in range(10**6))
    place = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, len(names), 0)
    end = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(names), 1) + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0
    )
    path.write_bytes(names + place + end)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        entry = tarfile.TarInfo("a.png")
        entry.size = _MANY
        archive.addfile(entry, _Zeros(_MANY))


def _header(path: Path) -> None:
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = tarfile.XHDTYPE, _MANY
    _sparse(path, entry)


def _member(path: Path, name: str = "a.png") -> None:
    entry = tarfile.TarInfo(name)
    entry.size = _MANY
    _sparse(path, entry)


def _sparse(path: Path, entry: tarfile.TarInfo) -> None:
    with path.open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(file.tell() + _MANY + 2**12)


def _members(path: Path) -> None:
    with path.open("wb") as file:
        for number in range(2 * 10**6):
            file.write(tarfile.TarInfo(f"{number}.npy").tobuf(tarfile.USTAR_FORMAT))
        file.truncate(file.tell() + 2**12)


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        taken = min(self.left, size)
        self.left -= taken
        return bytes(taken)


def _gzip(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for piece in _zeros(_MANY):
            file.write(piece)
