"""What comes out of a browser is read, or refused in one sentence."""

import base64
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genprior.app import images

GREY, COLOUR = (1, 28, 28), (3, 64, 64)


def file_of(image, format="png"):
    store = io.BytesIO()
    image.save(store, format=format)
    return store.getvalue()


def bomb(width, height):
    """A file of some bytes that says it has many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def url_of(image):
    return "data:image/png;base64," + base64.b64encode(file_of(image)).decode()


def sketch(alpha):
    """Strokes as the sketchpad sends them: opaque where there is ink."""
    layer = np.full((*alpha.shape, 4), 255, dtype=np.uint8)
    layer[..., 3] = alpha
    return url_of(Image.fromarray(layer))


def test_an_exact_image_arrives_exactly():
    pixels = np.random.default_rng(0).integers(0, 100, (28, 28), dtype=np.uint8)
    assert torch.equal(images.read_upload(file_of(Image.fromarray(pixels)), GREY)[0, 0] * 255, torch.tensor(pixels))
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    found = images.read_upload(file_of(Image.fromarray(pixels)), COLOUR)
    assert torch.equal((found[0] * 255).round().byte(), torch.tensor(pixels).permute(2, 0, 1))


def test_transparent_parts_become_white():
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    assert bool((images.read_upload(file_of(image), COLOUR) == 1).all())
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 255))
    assert torch.equal(images.read_upload(file_of(image), COLOUR).amax((0, 2, 3)), torch.tensor([1.0, 0.0, 0.0]))


def test_sixteen_bits_keep_their_brightness():
    image = Image.fromarray(np.full((28, 28), 13107, dtype=np.uint16))
    assert images.read_upload(file_of(image), GREY).unique().tolist() == pytest.approx([0.2])


def test_ink_on_paper_becomes_white_on_black():
    paper = np.full((100, 100), 250, dtype=np.uint8)
    paper[40:60, 40:60] = 0
    found = images.read_upload(file_of(Image.fromarray(paper)), GREY)
    assert found[0, 0, 14, 14] > 0.9 and found[0, 0, 0, 0] < 0.1


def test_the_middle_square_of_a_wide_image():
    wide = np.zeros((40, 200, 3), dtype=np.uint8)
    wide[:, 80:120] = 255
    assert images.read_upload(file_of(Image.fromarray(wide)), COLOUR).mean() > 0.98


CUT, POSTSCRIPT = file_of(Image.new("L", (50, 50)))[:60], file_of(Image.new("L", (28, 28)), "eps")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(50), CUT, b"GIF89a", POSTSCRIPT])
def test_garbage_is_refused_in_one_sentence(data):
    with pytest.raises(ValueError, match=r"cannot be read as (a picture|an image)") as problem:
        images.read_upload(data, GREY, "cat.png")
    assert "cat.png" in str(problem.value) and "\n" not in str(problem.value)
    assert "BytesIO" not in str(problem.value), "nothing of ours in what a visitor reads"


@pytest.mark.parametrize("size", [(4000, 4000), (6000, 6000), (20000, 20000)])
def test_a_bomb_is_refused(size):
    """A small file with many pixels; Pillow itself refuses the second."""
    with pytest.raises(ValueError, match="pixels"):
        images.read_upload(bomb(*size), GREY)


@given(st.binary(max_size=300), st.integers(0, 80))
def test_broken_files_never_raise_anything_else(noise, cut):
    whole = file_of(Image.new("RGB", (9, 9), "red"))
    for data in (noise, whole[:cut] + noise + whole[cut + len(noise) :]):
        try:
            found = images.read_upload(data, GREY)
        except ValueError:
            continue
        assert found.shape == (1, *GREY) and found.min() >= 0 and found.max() <= 1


def test_a_drawing_is_fitted_and_centred_as_mnist_is():
    alpha = np.zeros((280, 280), dtype=np.uint8)
    alpha[10:110, 5:55] = 255  # a small bar in a corner
    digit = images.read_drawing(sketch(alpha), GREY)[0, 0]
    rows, columns = digit.sum(1).nonzero()[:, 0], digit.sum(0).nonzero()[:, 0]
    assert len(rows) == 20 and len(columns) == 10
    centre = [float((digit.sum(1 - axis) * (torch.arange(28) + 0.5)).sum() / digit.sum()) for axis in (0, 1)]
    assert centre == pytest.approx([14, 14], abs=0.51)


def test_a_drawing_that_leans_is_not_cut_off():
    alpha = np.zeros((280, 280), dtype=np.uint8)
    alpha[0:280, 0:60] = 255
    alpha[270:280, :] = 255
    digit = images.read_drawing(sketch(alpha), GREY)[0, 0]
    assert len(digit.sum(0).nonzero()) == len(digit.sum(1).nonzero()) == 20


def test_the_mask_is_what_is_not_painted():
    alpha = np.zeros((280, 280), dtype=np.uint8)
    alpha[:, :140] = 255
    known = images.read_mask(sketch(alpha), COLOUR)
    assert known.shape == (64, 64) and not known[:, :32].any() and known[:, 32:].all()


@pytest.mark.parametrize(
    "call, alpha, words",
    [
        (images.read_drawing, 0, "nothing is drawn"),
        (images.read_mask, 0, "no part is painted"),
        (images.read_mask, 255, "everything is painted"),
    ],
)
def test_an_empty_sketch_is_refused(call, alpha, words):
    with pytest.raises(ValueError, match=words):
        call(sketch(np.full((280, 280), alpha, dtype=np.uint8)), GREY)


@pytest.mark.parametrize(
    "url",
    ["", "https://example.org/x.png", "data:image/png;base64,####", "data:image/png;base64,aGVsbG8=", "x" * 2_000_000],
)
def test_a_sketch_may_be_anything(url):
    with pytest.raises(ValueError, match="the sketch"):
        images.read_drawing(url, GREY)


def test_a_huge_sketch_is_refused():
    with pytest.raises(ValueError, match="5000 x 2 pixels"):
        images.read_mask(url_of(Image.new("RGBA", (5000, 2))), GREY)


def test_png_and_back():
    picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    back = np.asarray(Image.open(io.BytesIO(images.png(picture, zoom=2))))
    assert back.shape == (16, 16, 3)
    assert np.abs(back[::2, ::2] / 255 - picture[0].permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6
    assert images.data_url(picture).startswith("data:image/png;base64,iVBOR")
