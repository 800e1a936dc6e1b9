"""Pictures of every kind: a stated conversion, or a refusal that says what to do."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from genprior.files import images
from genprior.files.guard import Unreadable
from genprior.files.images import WRITTEN_AS, ImageSpec, check_file, decode, encode
from genprior.files.single import read_image
from genprior.training.data import image_files

GREY = ImageSpec(1, 6, 8)
COLOUR = ImageSpec(3, 6, 8)
LOSSLESS = [ending for ending in WRITTEN_AS.values() if not ending.startswith(".jp")]


def pixels(channels, seed=0):
    shape = (6, 8) if channels == 1 else (6, 8, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image, path, **options):
    image.save(path, **options)
    return path


def two_frames(path):
    first, second = (Image.fromarray(pixels(1, seed)) for seed in (0, 1))
    return saved(first, path, save_all=True, append_images=[second])


@pytest.mark.parametrize("ending", sorted(set(LOSSLESS)))
@pytest.mark.parametrize("wanted", [GREY, COLOUR])
def test_round_trip_is_exact_to_a_byte(tmp_path, ending, wanted):
    picture = torch.from_numpy(pixels(wanted.channels)).reshape(6, 8, -1).permute(2, 0, 1) / 255
    encode(picture, tmp_path / f"a{ending}")
    assert torch.equal(decode(tmp_path / f"a{ending}", wanted), picture.float())


def test_jpeg_is_close(tmp_path):
    smooth = torch.linspace(0, 1, 48).reshape(1, 6, 8)
    encode(smooth, tmp_path / "a.jpg")
    assert (decode(tmp_path / "a.jpg", GREY) - smooth).abs().max() < 0.03


def test_sixteen_bits_are_kept(tmp_path):
    deep = np.random.default_rng(0).integers(0, 65536, (6, 8), dtype=np.uint16)
    path = saved(Image.fromarray(deep), tmp_path / "deep.png")
    values = decode(path, GREY)
    assert torch.allclose(values[0] * 65535, torch.from_numpy(deep.astype(np.float32)), atol=0.01)
    assert check_file(path, GREY) is True
    encode(values, tmp_path / "again.png", deep=True)
    with Image.open(tmp_path / "again.png") as image:
        assert np.array_equal(np.asarray(image), deep)
    assert torch.equal(decode(path, COLOUR), values.expand(3, -1, -1)), "grey as three equal channels"


def test_palette_and_grey_and_colour(tmp_path):
    colour = Image.fromarray(pixels(3))
    palette = colour.quantize(8)
    path = saved(palette, tmp_path / "palette.png")
    expected = torch.from_numpy(np.array(palette.convert("RGB"))).permute(2, 0, 1) / 255
    assert torch.equal(decode(path, COLOUR), expected)
    luma = torch.from_numpy(np.array(colour.convert("L")))[None] / 255
    assert torch.equal(decode(saved(colour, tmp_path / "colour.png"), GREY), luma)
    assert torch.equal(
        decode(saved(Image.fromarray(pixels(1)), tmp_path / "g.png"), COLOUR)[0], torch.from_numpy(pixels(1)) / 255
    )


def test_opaque_alpha_is_dropped_and_transparency_refused(tmp_path):
    rgba = np.dstack([pixels(3), np.full((6, 8), 255, np.uint8)])
    opaque = decode(saved(Image.fromarray(rgba), tmp_path / "opaque.png"), COLOUR)
    assert torch.equal(opaque, torch.from_numpy(pixels(3)).permute(2, 0, 1) / 255)
    rgba[0, 0, 3] = 200
    with pytest.raises(Unreadable, match=r"transparent pixels.*flatten"):
        decode(saved(Image.fromarray(rgba), tmp_path / "glass.png"), COLOUR)


def test_rotation_marks_are_obeyed(tmp_path):
    image = Image.fromarray(pixels(1).T.copy())  # 6 x 8 lying on its side
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(image, tmp_path / "turned.png", exif=exif)
    upright = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    assert upright.shape == (6, 8)
    check_file(path, GREY)
    assert torch.equal(decode(path, GREY)[0], torch.from_numpy(upright.copy()) / 255)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: saved(Image.fromarray(np.zeros((9, 8), np.uint8)), p / "a.png"), "8 x 9 pixels, .*`resize=True`"),
        (lambda p: saved(Image.fromarray(np.zeros((6, 8), np.float32)), p / "a.tif"), "32 bits"),
        (lambda p: two_frames(p / "a.gif"), "several frames"),
    ],
)  # fmt: skip
def test_refused_by_its_head(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises(Unreadable, match=message):
        check_file(path, GREY)
    with pytest.raises(Unreadable, match=message):
        decode(path, GREY)


def test_too_large_to_open(tmp_path, monkeypatch):
    path = saved(Image.fromarray(pixels(1)), tmp_path / "a.png")
    monkeypatch.setattr(images, "MOST_PIXELS", 30)
    with pytest.raises(Unreadable, match=r"a\.png has 8 x 6 pixels, at most .* are read: scale it down first"):
        decode(path, GREY)


def test_postscript_under_another_ending_starts_no_program(tmp_path, monkeypatch):
    path = saved(Image.fromarray(pixels(3)), tmp_path / "a.png", format="EPS")
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **options: started.append(given))
    for read in (check_file, decode, lambda path, wanted: read_image(path, wanted.channels)):
        with pytest.raises(Unreadable, match=r"a\.png cannot be read as an image"):
            read(path, COLOUR)
    with pytest.raises(ValueError, match=r"1 could not be read, the first is a\.png"):
        image_files(tmp_path)
    assert not started


def test_resize_cuts_the_middle_and_scales(tmp_path):
    wide = np.zeros((12, 40), np.uint8)
    wide[:, 12:28] = 200  # the middle 16 x 12, which becomes 8 x 6
    path = saved(Image.fromarray(wide), tmp_path / "wide.png")
    values = decode(path, ImageSpec(1, 6, 8, resize=True))
    assert values.shape == (1, 6, 8)
    assert torch.allclose(values, torch.tensor(200 / 255), atol=0.05)


def test_bytes_and_names():
    store = io.BytesIO()
    Image.fromarray(pixels(1)).save(store, format="png")
    assert decode(store.getvalue(), GREY).shape == (1, 6, 8)
    with pytest.raises(Unreadable, match=r"upload\.png cannot be read as an image"):
        decode(b"no picture at all", GREY, name="upload.png")


def test_sixteen_bits_in_a_pgm(tmp_path):
    deep = np.random.default_rng(0).integers(0, 65536, (6, 8), dtype=np.uint16)
    path = tmp_path / "deep.pgm"
    path.write_bytes(b"P5\n8 6\n65535\n" + deep.astype(">u2").tobytes())
    assert check_file(path, GREY) is True
    assert torch.allclose(decode(path, GREY)[0] * 65535, torch.from_numpy(deep.astype(np.float32)), atol=0.01)
    path.write_bytes(b"P5\n8 6\n1000\n" + (deep % 1001).astype(">u2").tobytes())
    assert torch.allclose(decode(path, GREY)[0] * 1000, torch.from_numpy((deep % 1001).astype(np.float32)), atol=0.02)


def deep_colour(path, deep):
    """A PNG with 16 bits for each of three colours, which Pillow does not write."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    head = struct.pack(">IIBBBBB", deep.shape[1], deep.shape[0], 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    return path


def test_of_sixteen_bits_for_each_colour_the_upper_eight_are_read(tmp_path):
    deep = np.random.default_rng(0).integers(0, 65536, (6, 8, 3), dtype=np.uint16)
    path = deep_colour(tmp_path / "deep.png", deep)
    assert check_file(path, COLOUR) is False
    expected = torch.from_numpy((deep >> 8).astype(np.float32)).permute(2, 0, 1) / 255
    assert torch.equal(decode(path, COLOUR), expected)


def test_first_frame_of_a_cameras_jpeg(tmp_path):
    first, second = (Image.new("RGB", (8, 6), (level,) * 3) for level in (200, 20))
    path = saved(first, tmp_path / "phone.jpg", format="MPO", save_all=True, append_images=[second])
    with Image.open(path) as image:
        assert image.n_frames == 2
    assert (decode(path, COLOUR) - 200 / 255).abs().max() < 0.02
