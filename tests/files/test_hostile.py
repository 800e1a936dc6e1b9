"""Files made to read other files, to fill the memory or to take for ever: refused by name, before anything is unpacked."""

import io
import json
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from genprior.files import arrays, hdf5, limits, open_items
from genprior.files.arrays import open_arrays
from genprior.files.expected import Expected
from genprior.files.guard import Unreadable
from genprior.files.images import ImageSpec, decode
from genprior.files.limits import unpacks_to
from genprior.files.single import read_array

h5py = pytest.importorskip("h5py")

SHAPE = (1, 4, 4)
VALUES = np.linspace(0, 1, 48, dtype=np.float32).reshape(3, *SHAPE)
EXPECTED = Expected(SHAPE)


def opened(path):
    return open_items([path], EXPECTED)


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_bytes(bytes(range(64)))
    return path


def external(file, secret):
    file.create_dataset("x", (1, 1, 4, 4), "f4", external=[(str(secret), 0, 64)])


def virtual(file, secret):
    other = secret.with_name("other.h5")
    with h5py.File(other, "w") as store:
        store["x"] = VALUES
    layout = h5py.VirtualLayout((3, 1, 4, 4), "f4")
    layout[:] = h5py.VirtualSource(str(other), "x", shape=(3, 1, 4, 4))
    file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize(
    ("make", "words"), [(external, r"lies in another file \(.*secret\.txt\)"), (virtual, "virtual")]
)
@pytest.mark.parametrize("key", ["", ":x"])
def test_data_in_other_files_are_not_read(tmp_path, secret, make, words, key):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file, secret)
        file["y"] = VALUES
    with pytest.raises(ValueError, match=rf"a\.h5: data set x .*{words}.*copy the values"):
        open_items([f"{tmp_path / 'a.h5'}{key}"], EXPECTED)
    assert len(open_items([f"{tmp_path / 'a.h5'}:y"], EXPECTED)) == 3, "what is not asked for does no harm"


def test_links_into_other_files_are_not_followed(tmp_path, secret):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = VALUES
        external(file.create_group("group"), secret)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["soft"] = h5py.SoftLink("/link")
        file["folder"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/group")
    with pytest.raises(ValueError, match=r"a\.h5 holds no array"):
        opened(tmp_path / "a.h5")
    for key in ("link", "soft", "folder/x"):
        with pytest.raises(ValueError, match=r"a\.h5"):
            open_items([f"{tmp_path / 'a.h5'}:{key}"], EXPECTED)


def test_a_chunk_that_is_too_large_is_not_unpacked(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset(
            "x", (2, 1, 4, 4), "f4", maxshape=(None, 1, 4, 4), chunks=(2**21 + 1, 1, 4, 4), compression=4
        )
        data.id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(2**20)))
    with pytest.raises(ValueError, match=r"a\.h5: data set x has chunks of 134 MB, at most 134 MB.*smaller chunks"):
        opened(tmp_path / "a.h5")


@pytest.mark.parametrize("checksum", [False, True])
def test_a_chunk_that_becomes_more_than_it_says(tmp_path, monkeypatch, checksum):
    """HDF5 unpacks to the end of the stream, whatever the head says."""
    monkeypatch.setattr(hdf5, "LARGEST_PIECE", 2**16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", (3, 1, 4, 4), "f4", chunks=(1, 1, 4, 4), compression=4, fletcher32=checksum)
        data[:] = VALUES
        data.id.write_direct_chunk((1, 0, 0, 0), zlib.compress(bytes(2**24), 9))
    items = opened(tmp_path / "a.h5")
    for _ in range(2):
        first, second, third = items.read(0, 1) + items.read(1, 2) + items.read(2, 3)
        assert first.value is not None and third.value is not None
        assert "a.h5: data set x has a chunk that expands beyond the 64 bytes declared" in second.problem


def test_large_honest_chunks_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "LARGEST_PIECE", 2**16)
    noise = np.random.default_rng(0).random((100, *SHAPE), dtype=np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=noise, chunks=(100, *SHAPE), compression=4, shuffle=True, fletcher32=True)
    items = opened(tmp_path / "a.h5")
    assert np.array_equal(torch.stack([item.value for item in items.read(0, 100)]).numpy(), noise)


@pytest.mark.parametrize(
    "packing", [{"compression": 4}, {"compression": "lzf"}, {"shuffle": True, "compression": 9}, {}]
)
def test_zeros_that_pack_well_are_read(tmp_path, packing):
    """A thousand times smaller than what it holds, and no bomb."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((200_000, *SHAPE), np.float32), chunks=(2000, *SHAPE), **packing)
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((200_000, *SHAPE), np.float32))
    for name in ("a.h5", "b.npz"):
        items = opened(tmp_path / name)
        assert len(items) == 200_000 and float(items.read(199_999, 200_000)[0].value.sum()) == 0


def test_unusual_filters_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=(VALUES * 255).astype(np.uint8), chunks=True, scaleoffset=4)
        file.create_dataset("y", data=VALUES, chunks=True, compression=h5py.h5z.FILTER_LZF)
    with pytest.raises(ValueError, match=r"a\.h5: data set x has unsupported filters \(6\)"):
        opened(tmp_path / "a.h5")
    assert len(open_items([f"{tmp_path / 'a.h5'}:y"], EXPECTED)) == 3


def test_numbers_that_were_never_written(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (10**12, *SHAPE), "f4", chunks=(10, *SHAPE))
    with pytest.raises(ValueError, match=r"a\.h5: data set x declares 6.4e\+04 GB but the file holds only 0 bytes"):
        opened(tmp_path / "a.h5")


def packed(head, content=b""):
    store = io.BytesIO()
    with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(head + content)
    return store.getvalue()


def test_a_head_of_gigabytes_in_an_npz_file(tmp_path):
    """numpy reads the head before it asks how long it is."""
    (tmp_path / "a.npz").write_bytes(packed(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**25), b" " * 2**25))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"a\.npz: the header of x has 33554432 bytes"):
        opened(tmp_path / "a.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_an_npz_file_that_declares_more_than_it_can_hold(tmp_path):
    store = io.BytesIO()
    np.savez_compressed(store, x=VALUES)
    content = bytearray(store.getvalue())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**31)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: x declares 2.15 GB but the file holds only"):
        opened(tmp_path / "a.npz")


def test_an_npz_file_packed_in_another_way(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        store = io.BytesIO()
        np.save(store, VALUES)
        archive.writestr("x.npy", store.getvalue())
    with pytest.raises(ValueError, match=r"a\.npz: x has an unsupported compression"):
        opened(tmp_path / "a.npz")


def test_archives_with_a_hidden_end(tmp_path):
    """Of two lists of contents, readers may see different ones."""
    np.savez(tmp_path / "a.npz", x=VALUES)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content + b"behind the end")
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as arrays \(it does not end as a zip file\)"):
        opened(tmp_path / "a.npz")
    place = b"PK\x06\x07" + struct.pack("<IQI", 0, 0, 1)
    (tmp_path / "a.npz").write_bytes(content[:-22] + b"PK\x06\x06" + bytes(52) + place + content[-22:])
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as arrays \(its end is not where it says\)"):
        opened(tmp_path / "a.npz")


def test_a_list_of_contents_that_is_too_long(tmp_path):
    head = json.dumps({"x": {"dtype": "F32", "shape": [1, 4, 4], "data_offsets": [0, 64]}}).encode()
    head += b" " * (limits.LARGEST_INDEX + 1 - len(head))
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(64))
    with pytest.raises(ValueError, match=r"a\.safetensors has a list of contents of 16.8 MB"):
        opened(tmp_path / "a.safetensors")


@pytest.mark.parametrize("ending", ["npz", "safetensors", "h5"])
def test_too_many_arrays(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(limits, "MOST_ARRAYS", 3)
    path = written(tmp_path / f"a.{ending}", {f"{number}": VALUES for number in range(4)})
    with pytest.raises(
        ValueError, match=rf"a\.{ending} holds 4 arrays, at most 3 are read: put the items into one array"
    ):
        opened(path)


def written(path, content):
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.update(content)
    else:
        np.savez(path, **content) if path.suffix == ".npz" else save_file(content, path)
    return path


OPENERS = {"npz": (zipfile, "ZipFile"), "safetensors": (arrays, "safe_open"), "h5": (h5py, "File")}


@pytest.mark.parametrize("ending", OPENERS)
def test_a_file_with_many_arrays_is_opened_once(tmp_path, monkeypatch, ending):
    """Each opening reads the names of all arrays: one for each array makes it quadratic."""
    path = written(tmp_path / f"a.{ending}", {f"{number:03d}": VALUES[:1] + number for number in range(60)})
    place, name = OPENERS[ending]
    plain, count = getattr(place, name), []
    monkeypatch.setattr(place, name, lambda *given, **options: count.append(given) or plain(*given, **options))
    items = open_items([path], Expected(SHAPE, unit_range=False))
    assert len(count) == 1
    read = [item.value.max().item() for start in range(0, 60, 7) for item in items.read(start, start + 7)]
    assert len(count) == 2 and read == pytest.approx([number + float(VALUES[0].max()) for number in range(60)])


def test_an_open_file_is_left_for_the_next(tmp_path):
    paths = [written(tmp_path / f"{name}.h5", {"x": VALUES}) for name in "ab"]
    items = open_items(paths, EXPECTED)
    first, second = (part.array.file for part in items.parts)
    items.read(0, 2)
    assert first._opened is not None and second._opened is None
    items.read(3, 4)
    assert first._opened is None and second._opened is not None
    items.read(5, 6)
    assert second._opened is None, "nothing stays open after the last item"
    with open_arrays(paths[0]) as found:
        assert found[0].file._opened is not None
    assert found[0].file._opened is None


def test_a_declared_array_that_is_not_there(tmp_path):
    """Not even the memory for it is asked for."""
    np.save(tmp_path / "a.npy", np.zeros(3))
    content = (tmp_path / "a.npy").read_bytes().replace(b"(3,), }" + b" " * 14, b"(3" + b"0" * 14 + b",), }")
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(Unreadable, match=r"a\.npy cannot be read as an array"):
        read_array(tmp_path / "a.npy")


def test_an_image_of_too_many_pixels(tmp_path):
    head = struct.pack(">IIBBBBB", 2**14, 2**12 + 1, 1, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for name, body in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(10))), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(Unreadable, match=r"a\.png has 16384 x 4097 pixels, at most 67 million are read: scale it down"):
        decode(tmp_path / "a.png", ImageSpec(1, 4, 4, resize=True))


def test_a_tiff_file_of_innumerable_frames(tmp_path):
    """They are not counted: that takes a time that grows with the square of their number."""
    path = tmp_path / "a.tif"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path, save_all=True, append_images=[Image.new("L", (4, 4))])
    content = bytearray(path.read_bytes())
    second = len(content)
    first = struct.unpack_from("<I", content, 4)[0]
    tags = struct.unpack_from("<H", content, first)[0]
    struct.pack_into("<I", content, first + 2 + 12 * tags, second)
    for number in range(60_000):
        content += struct.pack("<HI", 0, second + 6 * (number + 1))
    path.write_bytes(content + bytes(6))
    with pytest.raises(Unreadable, match="several frames"):
        decode(path, ImageSpec(1, 4, 4))


def test_streams_are_measured_without_being_kept():
    assert unpacks_to(zlib.compress(bytes(1000)), 1000) and not unpacks_to(zlib.compress(bytes(1001)), 1000)
    assert not unpacks_to(zlib.compress(bytes(10**7)), 10**6) and not unpacks_to(b"damaged", 0)


def first_chunk_damaged(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=VALUES, chunks=(1, *SHAPE), compression=4)
        data.id.write_direct_chunk((0, 0, 0, 0), b"damaged")


def first_rows_cut_off(path):
    np.savez(path, x=VALUES)
    with zipfile.ZipFile(path) as archive:
        head = archive.read("x.npy")[:140]
    path.write_bytes(packed(head))


@pytest.mark.parametrize(("name", "write"), [("a.h5", first_chunk_damaged), ("a.npz", first_rows_cut_off)])
def test_a_damaged_first_row_is_found_at_the_start(tmp_path, name, write):
    """Before any work, not as an item that failed."""
    write(tmp_path / name)
    with pytest.raises(ValueError, match=r"a\.\w+"):
        opened(tmp_path / name)
