"""Readers meet rubbish: random bytes under every ending, real files cut short or with bytes changed."""

import io

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

from genprior.items import open_items
from genprior.items.arrays import ARRAY_ENDINGS
from genprior.items.pictures import WRITTEN_AS
from genprior.items.stream import Expected

SHAPE = (1, 4, 4)
VALUES = np.linspace(0, 1, 32, dtype=np.float32).reshape(2, 1, 4, 4)
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def real(ending):
    store = io.BytesIO()
    if ending in (".h5", ".hdf5"):
        with h5py.File(store, "w") as file:
            file["a"] = VALUES
    elif ending == ".safetensors":
        return save({"a": VALUES})
    elif ending == ".npy":
        np.save(store, VALUES)
    elif ending == ".npz":
        np.savez_compressed(store, a=VALUES)
    else:
        format = {".jpg": "jpeg", ".tif": "tiff", ".pgm": "ppm"}.get(ending, ending[1:])
        Image.fromarray((VALUES[0, 0] * 255).astype(np.uint8)).save(store, format=format)
    return store.getvalue()


def survives(folder, ending, content):
    path = folder / f"x{ending}"
    path.write_bytes(content)
    try:
        items = open_items([path], Expected(SHAPE))
        loaded = items.read(0, min(len(items), 4))
    except (ValueError, OSError) as problem:
        assert str(problem)
        return
    for item in loaded:
        assert item.value is None or item.value.shape == SHAPE
        assert (item.value is None) == bool(item.problem)


@pytest.mark.parametrize("ending", [*WRITTEN_AS, *ARRAY_ENDINGS])
def test_rubbish(tmp_path, ending):
    whole = real(ending)
    survives(tmp_path, ending, whole)
    survives(tmp_path, ending, b"")

    @QUICK
    @given(st.data())
    def spoilt(data):
        kind = data.draw(st.sampled_from(["random", "cut", "changed", "head"]))
        if kind == "random":
            content = data.draw(st.binary(max_size=200))
        elif kind == "cut":
            content = whole[: data.draw(st.integers(0, len(whole)))]
        elif kind == "head":
            content = whole[:16] + data.draw(st.binary(max_size=200))
        else:
            changed = bytearray(whole)
            for _ in range(data.draw(st.integers(1, 4))):
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
            content = bytes(changed)
        survives(tmp_path, ending, content)

    spoilt()
