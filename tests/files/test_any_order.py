"""Batches written in any order, over several runs: the files are the same, and in place as soon as they are complete."""

import random

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from genprior.files import Outputs, open_items
from genprior.files.expected import Expected

SHAPE = (1, 3, 4)
FILES = {"b.npy": (0, 7), "c.npz": (7, 14), "d.safetensors": (14, 17), "f.h5": (19, 20), "g.npy": (20, 33)}
"""The array files, with their first item and the one after the last."""


def values(count):
    return np.random.default_rng(count).random((count, *SHAPE), dtype=np.float32)


@pytest.fixture
def items(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "b.npy", values(7))
    np.savez(folder / "c.npz", x=values(2), y=values(5))
    save_file({"z": values(3)}, folder / "d.safetensors")
    for name in ("e0.png", "e1.png"):
        Image.new("L", SHAPE[:0:-1]).save(folder / name)
    with h5py.File(folder / "f.h5", "w") as file:
        file["v"] = values(1)
    np.save(folder / "g.npy", values(13))
    return open_items([folder], Expected(SHAPE))


def signal(number):
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(number))


def solve(outputs, size, batch, total=33):
    numbers = range(batch * size, min(total, (batch + 1) * size))
    outputs.write(numbers[0], [None if number == 11 else signal(number) for number in numbers])


def stored(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def opened(items, folder):
    (folder / "work").mkdir(parents=True, exist_ok=True)
    return Outputs(items, folder / "out", folder / "work", SHAPE)


def in_order(items, folder, size):
    """The files of an undisturbed run."""
    outputs = opened(items, folder)
    outputs.begin(size)
    for batch in range(-(-33 // size)):
        solve(outputs, size, batch)
        outputs.finish(batch)
    return stored(folder)


@pytest.mark.parametrize("size", [1, 4, 6, 50])
def test_any_order_over_any_number_of_runs(items, tmp_path, size):
    count = -(-33 // size)
    expected = in_order(items, tmp_path / "plain", size)
    assert len(expected) == 7 and np.isnan(np.load(tmp_path / "plain/out/c.npz")["y"][2]).all()
    for seed in range(4):
        chance = random.Random(seed)
        folder, done = tmp_path / str(seed), np.zeros(count, bool)
        outputs = opened(items, folder)
        outputs.begin(size)
        for batch in chance.sample(range(count), count):
            solve(outputs, size, batch)
            if chance.random() < 0.2:  # killed before the record
                outputs = opened(items, folder)
                outputs.begin(size, done)
                solve(outputs, size, batch)
            done[batch] = True
            if chance.random() < 0.3:  # killed after the record: nothing was finished
                outputs = opened(items, folder)
                assert not outputs.to_repeat(done, size).any()
                outputs.begin(size, done)
            for _ in range(2):
                outputs.finish(batch)
            ready = [
                name for name, (start, stop) in FILES.items() if done[start // size : (stop - 1) // size + 1].all()
            ]
            assert [name for name in FILES if (folder / "out" / name).exists()] == ready
        assert stored(folder) == expected


@pytest.mark.parametrize("size", [1, 4, 6])
def test_whatever_is_lost_is_made_again(items, tmp_path, size):
    """Array files, whole or growing, deleted at random: after the batches to repeat, and those left, all is there."""
    expected, count = in_order(items, tmp_path / "plain", size), -(-33 // size)
    for seed in range(12):
        chance = random.Random(seed)
        folder, done = tmp_path / str(seed), np.zeros(count, bool)
        outputs = opened(items, folder)
        outputs.begin(size)
        for batch in chance.sample(range(count), chance.randint(1, count)):
            solve(outputs, size, batch)
            done[batch] = True
            outputs.finish(batch)
        there = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png")
        lost = chance.sample(there, min(len(there), chance.randint(0, 2)))
        for path in lost:
            path.unlink()
        again = opened(items, folder)
        repeated = again.to_repeat(done, size)
        assert not (repeated & ~done).any() and (repeated.any() or not lost)
        done &= ~repeated
        again.begin(size, done)
        for batch in np.flatnonzero(~done).tolist():
            solve(again, size, batch)
            again.finish(batch)
        assert stored(folder) == expected


def test_memory_is_that_of_the_batches(items, tmp_path):
    outputs = opened(items, tmp_path)
    outputs.begin(4)
    assert outputs._done.nbytes == 9 and outputs._left.itemsize * len(outputs._left) == 8 * len(FILES)
