"""Contact sheets and pages: the right pixels in the right places, everything escaped, nothing from outside."""

import base64
import io
import re

import numpy as np
import torch
from PIL import Image

from genprior.report import page
from genprior.report.losses import draw_losses, running_mean
from genprior.report.sheets import contact_sheet, grid


def test_grid_places_every_picture():
    pictures = torch.arange(5).reshape(5, 1, 1, 1).expand(5, 1, 2, 3) / 255
    sheet = grid(pictures, columns=3, gap=1)
    assert sheet.shape == (5, 11, 1)
    assert [int(sheet[3 * (i // 3), 4 * (i % 3), 0]) for i in range(5)] == [0, 1, 2, 3, 4]
    assert not sheet[2].any() and not sheet[:, 3].any() and not sheet[3:, 8:].any(), "gaps and empty places are dark"


def test_values_outside_the_range_are_clamped_and_rounded():
    sheet = grid(torch.tensor([-1.0, 2.0, 0.5]).reshape(3, 1, 1, 1), columns=3, gap=0)
    assert sheet.flatten().tolist() == [0, 255, 128]


def test_contact_sheet_in_grey_and_colour(tmp_path):
    contact_sheet(torch.rand(10, 1, 28, 28), tmp_path / "grey.png")
    contact_sheet(torch.rand(3, 3, 64, 64), tmp_path / "colour.png", columns=2, zoom=1)
    with Image.open(tmp_path / "grey.png") as grey, Image.open(tmp_path / "colour.png") as colour:
        assert grey.mode == "L" and grey.size == (2 * 231, 2 * 57)
        assert colour.mode == "RGB" and colour.size == (129, 129)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["colour.png", "grey.png"]


def test_page_escapes_what_people_write():
    text = page.page("<b>title", "a & b", [("<i>", page.paragraph("1 < 2"))], "<end>")
    for dangerous in ("<b>title", "<i>", "1 < 2", "<end>"):
        assert dangerous not in text
    assert "&lt;b&gt;title" in text and "a &amp; b" in text
    rows = page.table(("<h>",), [("<script>",), ("x",)], best=1, prose=True)
    assert "<script>" not in rows and rows.count("<tr") == 3 and rows.count('class="best"') == 1


def test_picture_row_holds_the_pixels():
    pictures = torch.rand(2, 3, 4, 4)
    text = page.strips([('quote"', pictures)])
    assert 'alt="quote&quot;"' in text
    data = re.findall(r"base64,([^\"]+)", text)[0]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        pixels = np.array(image)
    assert pixels.shape == (4, 10, 3)
    assert (pixels[:, 6:] == (pictures[1] * 255).round().byte().permute(1, 2, 0).numpy()).all()


def test_running_mean():
    values = torch.tensor([torch.nan, 1.0, 2.0, 3.0, torch.nan, 7.0])
    expected = [torch.nan, 1.0, 1.5, 2.5, torch.nan, 7.0]
    assert torch.allclose(running_mean(values, 2), torch.tensor(expected, dtype=torch.float64), equal_nan=True)


def test_loss_curves(tmp_path):
    draw_losses(("a", "b"), torch.rand(30, 2), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.width > 600
