"""The digits that come with the package, and the folder of pictures made from them."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from genprior import samples


def test_saved_digits_are_the_digits(tmp_path):
    pictures, labels = samples.digits(12)
    paths = samples.save(tmp_path / "new" / "pictures", 12)
    assert [path.name for path in paths[:2]] == ["00-7.png", "01-2.png"]
    assert sorted(path.name for path in (tmp_path / "new" / "pictures").iterdir()) == sorted(
        path.name for path in paths
    )
    for path, picture, label in zip(paths, pictures, labels.tolist(), strict=True):
        with Image.open(path) as image:
            assert image.mode == "L" and path.stem.endswith(f"-{label}")
            torch.testing.assert_close(torch.from_numpy(np.array(image)).float() / 255, picture[0])
