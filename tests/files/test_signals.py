"""Signals in time (.wav, .csv), volumes, and files as scanners' data are given."""

import wave

import h5py
import numpy as np
import pytest
import torch
from scipy.io import wavfile

from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.layout import fit

SIGNAL = np.sin(np.arange(40) / 3).astype(np.float32)


def read(path, shape, **options):
    items = open_items([path], Expected(shape, **options))
    return items, items.read(0, len(items))


def written(items, signals, folder, shape):
    work = folder / "work"
    work.mkdir()
    outputs = Outputs(items, folder / "out", work, shape)
    outputs.write(0, signals)
    outputs.begin(len(items))
    outputs.finish(0)
    return folder / "out"


@pytest.mark.parametrize("kind", ["u1", "i2", "i4"])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_files_against_scipy(tmp_path, kind, channels):
    signal = np.stack([SIGNAL, 0.5 * SIGNAL[::-1]])[:channels].T
    bits = 8 * np.dtype(kind).itemsize
    stored = np.round(signal * (2 ** (bits - 1) - 1) + (128 if kind == "u1" else 0)).astype(kind)
    wavfile.write(tmp_path / "a.wav", 8000, stored[:, 0] if channels == 1 else stored)
    shape = (40,) if channels == 1 else (2, 40)
    items, (loaded,) = read(tmp_path / "a.wav", shape)
    np.testing.assert_allclose(loaded.value.numpy().reshape(channels, 40).T, signal, atol=2.1 * 2.0 ** (1 - bits))
    out = written(items, [loaded.value], tmp_path, shape)
    rate, again = wavfile.read(out / "a.wav")
    assert rate == 8000 and again.dtype == np.int16
    np.testing.assert_allclose(again.reshape(40, channels) / 2**15, signal, atol=2.1 * 2.0 ** (1 - min(bits, 16)))


def test_sound_of_24_bits(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(3)
        sound.setframerate(100)
        sound.writeframes(b"".join(value.to_bytes(3, "little", signed=True) for value in (0, 2**22, -(2**23), -1)))
    _, (loaded,) = read(tmp_path / "a.wav", (4,))
    assert loaded.value.tolist() == [0, 0.5, -1, -(2.0**-23)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
@pytest.mark.parametrize("names", ["", "I{0}II\n"])
def test_tables_have_a_column_for_each_channel(tmp_path, delimiter, names):
    signal = np.stack([SIGNAL, 2 * SIGNAL], axis=1)
    with (tmp_path / "a.csv").open("w") as file:
        file.write(names.format(delimiter))
        np.savetxt(file, signal, delimiter=delimiter)
    items, (loaded,) = read(tmp_path / "a.csv", (2, 40))
    np.testing.assert_allclose(loaded.value.numpy(), signal.T, rtol=1e-6)
    out = written(items, [loaded.value], tmp_path, (2, 40))
    np.testing.assert_allclose(np.loadtxt(out / "a.csv", delimiter=","), signal, rtol=1e-6)
    _, several = read(tmp_path / "a.csv", (40,))
    assert len(several) == 2
    np.testing.assert_allclose(several[1].value.numpy(), signal[:, 1], rtol=1e-6)


def test_a_table_of_one_column_is_a_signal_of_one_channel(tmp_path):
    np.savetxt(tmp_path / "a.csv", SIGNAL)
    for shape in ((40,), (1, 40)):
        items, (loaded,) = read(tmp_path / "a.csv", shape)
        assert tuple(loaded.value.shape) == shape and len(items) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"1,2\n3\n", "table of numbers"),
        ("a.csv", b"1,x\n3,4\n", "table of numbers"),
        ("a.csv", b"", "no row of numbers"),
        ("a.csv", b"\xff\xfe\x00", "table of numbers"),
        ("a.csv", b"1,nan\n" * 40, "NaN"),
        ("a.wav", b"RIFF", "sound file"),
        ("a.wav", b"RIFF\x10\x00\x00\x00WAVEfmt \x10", "sound file"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words) if words != "NaN" else pytest.MonkeyPatch.context():
        _, loaded = read(tmp_path / name, (2, 40))
        if words == "NaN":
            assert "NaN" in loaded[0].problem


def test_a_sound_that_declares_more_than_it_holds_is_refused(tmp_path):
    wavfile.write(tmp_path / "a.wav", 8000, np.zeros(40, np.int16))
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[40:44] = (2**31 - 2).to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ValueError, match="damaged, or forged"):
        read(tmp_path / "a.wav", (40,))


def test_float_sound_is_refused_with_its_format(tmp_path):
    wavfile.write(tmp_path / "a.wav", 8000, SIGNAL)
    with pytest.raises(ValueError, match=r"unknown format: 3"):
        read(tmp_path / "a.wav", (40,))


@pytest.mark.parametrize("reference", ["reconstruction_rss", "reconstruction_esc"])
def test_files_of_k_space(tmp_path, reference):
    """As fastMRI's: complex k-space, slices first; images of another size, a mask and a header beside it."""
    random = np.random.default_rng(0)
    kspace = (random.normal(size=(3, 4, 6, 5)) + 1j * random.normal(size=(3, 4, 6, 5))).astype(np.complex64)
    with h5py.File(tmp_path / "file1.h5", "w") as file:
        file["kspace"] = kspace
        file[reference] = random.normal(size=(3, 6, 5)).astype(np.float32)
        file["mask"] = np.array([1, 0, 1, 1, 0], np.uint8)
        file["ismrmrd_header"] = b"<xml/>"
        file.attrs["acquisition"] = "CORPD_FBK"
    items, loaded = read(tmp_path / "file1.h5", (4, 6, 5), measured=True, complex_too=True)
    assert len(items) == 3
    np.testing.assert_array_equal(torch.stack([one.value for one in loaded]).numpy(), kspace)
    signals = [torch.full((1, 6, 5), float(k)) for k in range(3)]
    out = written(items, signals, tmp_path, (1, 6, 5))
    with h5py.File(out / "file1.h5") as file:
        assert list(file) == ["reconstruction"] and file["reconstruction"].shape == (3, 1, 6, 5)
        assert file["reconstruction"][2].max() == 2


def test_k_space_of_one_coil_lies_beside_images_of_its_size(tmp_path):
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["kspace"] = np.ones((2, 6, 5), np.complex64)
        file["reconstruction_esc"] = np.ones((2, 6, 5), np.float32)
    items, _ = read(tmp_path / "one.h5", (1, 6, 5), measured=True, complex_too=True)
    assert len(items) == 2


def test_volumes_without_their_single_channel():
    layout = fit((2, 3, 4, 5), (1, 3, 4, 5), "x")
    assert layout.form == "plain" and layout.batched
    stored = torch.arange(120.0).reshape(2, 3, 4, 5)
    items = layout.to_items(stored, (1, 3, 4, 5))
    assert items.shape == (2, 1, 3, 4, 5) and torch.equal(layout.from_items(items), stored)
    assert fit((3, 4, 5), (1, 3, 4, 5), "x").form == "plain"
