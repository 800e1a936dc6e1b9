"""Items in files and folders: layouts, names, refusals, and the same layout back."""

import errno
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

import genprior as gp
from genprior.files import Outputs, open_items, opening
from genprior.files.guard import Unreadable
from genprior.files.layout import fit
from genprior.files.stream import Expected

h5py = pytest.importorskip("h5py")

SHAPE = (1, 6, 8)
VALUES = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)


def grey(path, number=0):
    Image.fromarray((VALUES[number, 0] * 255).round().astype(np.uint8)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """One of everything."""
    home = tmp_path / "in"
    (home / "sub").mkdir(parents=True)
    grey(home / "a.png")
    grey(home / "sub" / "b.png", 1)
    np.save(home / "c.npy", VALUES)
    np.savez_compressed(home / "d.npz", flat=VALUES.reshape(5, -1), last=VALUES[0].transpose(1, 2, 0))
    save_file({"q": VALUES[:, 0], "r": VALUES[:2].astype(np.float16), "s": VALUES[0]}, home / "e.safetensors")
    with h5py.File(home / "f.h5", "w") as file:
        file["group/one"] = VALUES[0]
        file["group/many"] = (VALUES * 255).round().astype(np.uint8)
    (home / "notes.txt").write_text("passed over")
    grey(home / ".hidden.png")
    return home


NAMES = [
    "a.png",
    *(f"c.npy[{i}]" for i in range(5)),
    *(f"d.npz/flat[{i}]" for i in range(5)),
    "d.npz/last",
    *(f"e.safetensors/q[{i}]" for i in range(5)),
    "e.safetensors/r[0]",
    "e.safetensors/r[1]",
    "e.safetensors/s",
    *(f"f.h5/group/many[{i}]" for i in range(5)),
    "f.h5/group/one",
    "sub/b.png",
]


def numbers(name):
    """Which of VALUES an item is."""
    return int(name[-2]) if name.endswith("]") else (1 if name == "sub/b.png" else 0)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_every_item_once_whatever_the_steps(folder, step):
    items = open_items([folder], Expected(SHAPE))
    assert len(items) == len(NAMES)
    loaded = [item for start in range(0, len(items), step) for item in items.read(start, start + step)]
    assert [item.name for item in loaded] == NAMES
    for item in loaded:
        assert item.value.shape == SHAPE and item.value.dtype == torch.float32
        assert np.abs(item.value.numpy() - VALUES[numbers(item.name)]).max() <= 0.5 / 255 + 1e-6, item.name


def test_packed_arrays_can_be_read_backwards(folder):
    items = open_items([folder / "d.npz"], Expected(SHAPE))
    last, first = items.read(4, 5)[0], items.read(0, 1)[0]
    assert np.array_equal(last.value.numpy(), VALUES[4]) and np.array_equal(first.value.numpy(), VALUES[0])


def test_the_same_layout_comes_back(folder, tmp_path):
    items = open_items([folder], Expected(SHAPE))
    out, work = tmp_path / "out", tmp_path / "work"
    work.mkdir()
    outputs = Outputs(items, out, work, SHAPE)
    outputs.begin(4)
    for start in range(0, len(items), 4):
        names = outputs.write(start, [1 - item.value for item in items.read(start, start + 4)])
        assert all((out / name).is_file() for name in names if name.endswith(".png"))
        outputs.finish(start // 4)
        complete = [name for name in ("c.npy", "d.npz", "e.safetensors", "f.h5") if (out / name).exists()]
        last = {"c.npy": 6, "d.npz": 12, "e.safetensors": 20, "f.h5": 26}
        assert complete == [name for name, index in last.items() if index <= start + 4], "only whole files"
    assert list(work.iterdir()) == []
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "a.png", "c.npy", "d.npz", "e.safetensors", "f.h5", "sub/b.png"
    ]  # fmt: skip
    assert np.allclose(np.load(out / "c.npy"), 1 - VALUES)
    with np.load(out / "d.npz") as file:
        assert sorted(file) == ["flat", "last"]
        assert np.allclose(file["flat"], 1 - VALUES.reshape(5, -1)) and file["last"].shape == (6, 8, 1)
        assert np.allclose(file["last"], 1 - VALUES[0].transpose(1, 2, 0))
    tensors = load_file(out / "e.safetensors")
    assert np.allclose(tensors["q"], 1 - VALUES[:, 0]) and tensors["r"].shape == (2, 1, 6, 8)
    with h5py.File(out / "f.h5") as file:
        assert file["group/one"].shape == SHAPE and np.abs(file["group/many"][:] - (1 - VALUES)).max() < 0.003
    with Image.open(out / "sub" / "b.png") as image:
        assert np.abs(np.asarray(image) / 255 - (1 - VALUES[1, 0])).max() < 1 / 255


def test_written_again_after_a_kill_between_files_and_record(folder, tmp_path):
    """The last batch is written twice: once before the kill, once after, with the rows of the first still there."""
    items = open_items([folder / "c.npy"], Expected(SHAPE))
    work = tmp_path / "work"
    work.mkdir()
    Outputs(items, tmp_path / "out", work, SHAPE).write(0, [item.value for item in items.read(0, 3)])
    Outputs(items, tmp_path / "out", work, SHAPE).write(3, [item.value for item in items.read(3, 5)])
    again = Outputs(items, tmp_path / "out", work, SHAPE)
    again.begin(3, np.array([True, False]))
    assert not (tmp_path / "out" / "c.npy").exists()
    again.write(3, [item.value for item in items.read(3, 5)])
    again.finish(1)
    again.finish(1)
    assert np.array_equal(np.load(tmp_path / "out" / "c.npy"), VALUES)


def test_an_item_without_result_is_nan_in_an_array(folder, tmp_path):
    items = open_items([folder / "c.npy"], Expected(SHAPE))
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    assert outputs.write(0, [None, *(item.value for item in items.read(1, 5))]) == [None] + ["c.npy"] * 4
    outputs.begin(5)
    outputs.finish(0)
    found = np.load(tmp_path / "out" / "c.npy")
    assert np.isnan(found[0]).all() and np.array_equal(found[1:], VALUES[1:])


def test_measurements_give_signals_of_another_shape(tmp_path):
    np.save(tmp_path / "y.npy", VALUES.reshape(5, -1)[:, :7])
    items = open_items([tmp_path / "y.npy"], Expected((7,), measured=True))
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.write(0, list(torch.from_numpy(VALUES)))
    outputs.begin(5)
    outputs.finish(0)
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), VALUES)


@pytest.mark.parametrize(
    ("shape", "kind", "batched"),
    [
        ((3, 6, 8), "exact", False), ((2, 3, 6, 8), "exact", True), ((6, 8, 3), "last", False),
        ((2, 6, 8, 3), "last", True), ((144,), "flat", False), ((2, 144), "flat", True),
    ],
)  # fmt: skip
def test_layouts(shape, kind, batched):
    layout = fit(shape, (3, 6, 8), "x")
    assert (layout.form, layout.batched) == (kind, batched)
    stored = torch.arange(float(np.prod(shape))).reshape(shape)
    rows = stored if batched else stored[None]
    items = layout.to_items(rows, (3, 6, 8))
    assert items.shape == (len(rows), 3, 6, 8) and torch.equal(layout.from_items(items), rows)


@pytest.mark.parametrize("shape", [(5, 5), (2, 6, 9), (4, 3, 6), (0, 3, 6, 8), (2, 2, 3, 6, 8), ()])
def test_layouts_that_do_not_fit(shape):
    with pytest.raises(Unreadable, match=r"has shape|is empty"):
        fit(shape, (3, 6, 8), "x")


def written(path, array):
    np.save(path, array, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("make", "expected", "message"),
    [
        (lambda p: written(p / "a.npy", np.zeros((2, 6, 9))), {}, "shape .2, 6, 9., expected .1, 6, 8. for one item"),
        (lambda p: written(p / "a.npy", np.zeros((2, 6, 8), np.int64)), {}, "whole numbers .int64."),
        (lambda p: written(p / "a.npy", np.zeros((2, 6, 8), np.uint8)), {"measured": True}, "expected floating-point meas"),
        (lambda p: written(p / "a.npy", np.zeros((2, 6, 8), complex)), {}, "complex numbers, expected real"),
        (lambda p: written(p / "a.npy", np.array([{"a": 1}])), {}, "holds Python objects .object arrays are"),
        (lambda p: written(p / "a.npy", np.zeros((2, 6, 8))), {"measured": True, "complex_too": True},
         "real numbers, expected complex measurements: `simulate=True`"),
        (lambda p: written(p / "a.npy", np.array(["x"])), {}, "shape"),
        (lambda p: written(p / "a.npy", np.zeros((0, 1, 6, 8))), {}, "is empty"),
        (lambda p: grey(p / "a.png"), {"shape": (392,), "whole": (1, 28, 28)}, "but items of shape .392,. .*`simulate=True`"),
        (lambda p: p / "no.png", {}, "there is no file or folder"),
        (lambda p: p, {}, "holds no file that can be read"),
    ],
)  # fmt: skip
def test_refused_before_any_work(tmp_path, make, expected, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_items([make(tmp_path)], Expected(**{"shape": SHAPE, **expected}))


def test_unknown_kind(tmp_path):
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(ValueError, match=r"a\.xyz has an unknown type: give \.png"):
        open_items([tmp_path / "a.xyz"], Expected(SHAPE))
    with pytest.raises(ValueError, match=r"no input"):
        open_items([], Expected(SHAPE))


def test_mixed_sizes_name_the_odd_ones(tmp_path):
    for number in range(4):
        grey(tmp_path / f"{number}.png")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "odd.png")
    with pytest.raises(
        ValueError, match=r"odd\.png has 9 x 9 pixels, expected 8 x 6.*`skip=True` leaves such files out"
    ):
        open_items([tmp_path], Expected(SHAPE))
    items = open_items([tmp_path], Expected(SHAPE), skip=True)
    loaded = items.read(0, 9)
    assert [item.value is None for item in loaded] == [False] * 4 + [True]
    assert "9 x 9" in loaded[4].problem
    assert len(open_items([tmp_path], Expected(SHAPE, resize=True))) == 5


def test_all_bad_is_refused_even_with_skip(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"cannot be read as an image"):
        open_items([tmp_path], Expected(SHAPE), skip=True)


def test_bad_values_are_the_items_fault(tmp_path):
    bad = np.stack([VALUES[0], np.full(SHAPE, np.nan, np.float32), VALUES[1] * 255])
    np.save(tmp_path / "a.npy", bad)
    loaded = open_items([tmp_path / "a.npy"], Expected(SHAPE)).read(0, 3)
    assert [item.value is None for item in loaded] == [False, True, True]
    assert "48 NaN" in loaded[1].problem and "divide by 255" in loaded[2].problem
    assert open_items([tmp_path / "a.npy"], Expected(SHAPE, unit_range=False)).read(2, 3)[0].value is not None


@pytest.mark.parametrize("rubbish", [np.nan, -9999.0, np.inf])
def test_what_was_not_measured_does_not_count(tmp_path, rubbish):
    known = torch.zeros(SHAPE[1:], dtype=torch.bool)
    known[2:] = True
    torn = VALUES.copy()
    torn[:, :, :2] = rubbish
    torn[3, 0, 4, 4] = np.nan
    np.save(tmp_path / "a.npy", torn)
    expected = Expected(SHAPE, operator=gp.operators.Mask(known, SHAPE))
    loaded = open_items([tmp_path / "a.npy"], expected).read(0, 5)
    assert [item.value is None for item in loaded] == [False, False, False, True, False]
    assert "holds 1 NaN" in loaded[3].problem, "what was measured does count"
    assert np.array_equal(loaded[1].value.numpy()[:, 2:], VALUES[1][:, 2:]) and not loaded[1].value[:, :2].any()
    assert all(item.value is None for item in open_items([tmp_path / "a.npy"], Expected(SHAPE)).read(0, 5))


def test_what_is_far_out_depends_on_the_operator(tmp_path):
    blur = gp.operators.Blur(torch.ones(5, 5), SHAPE)
    np.save(tmp_path / "a.npy", np.stack([12 * VALUES[0], 255 * VALUES[0]]))
    one, other = open_items([tmp_path / "a.npy"], Expected(SHAPE, operator=blur)).read(0, 2)
    assert one.value is not None
    assert "expected about [0, 25]: divide by 255?" in other.problem
    assert (
        "expected about [0, 1]: divide by 255?"
        in open_items([tmp_path / "a.npy"], Expected(SHAPE)).read(0, 1)[0].problem
    )


def test_bounds(tmp_path):
    values = np.stack([2 * VALUES[0] - 1, 2.03 * VALUES[0] - 1.015, 2 * VALUES[0] - 1.2, 1.2 + 0 * VALUES[0]])
    np.save(tmp_path / "a.npy", values)
    loaded = open_items([tmp_path / "a.npy"], Expected(SHAPE, unit_range=False, bounds=(-1.0, 1.0))).read(0, 4)
    assert [item.value is None for item in loaded] == [False, False, True, True]
    assert "expected [-1, 1], as the generator makes them: clip or scale them first" in loaded[2].problem
    assert np.array_equal(loaded[1].value.numpy(), values[1]), "nothing is changed here"


@pytest.mark.parametrize(
    "problem", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file or directory")]
)
@pytest.mark.parametrize("name", ["a.png", "a.npy"])
def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch, problem, name):
    grey(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", VALUES[0])
    np.save(tmp_path / "b.npy", VALUES)

    def closed(whole):
        def opened(path, *more):
            if path.name == name:
                raise problem
            return whole(path, *more)

        return opened

    for reader in ("check_file", "open_arrays"):
        monkeypatch.setattr(opening, reader, closed(getattr(opening, reader)))
    with pytest.raises(
        ValueError, match=rf"{name} cannot be opened .{problem.strerror}.; `skip=True` leaves such files out"
    ):
        open_items([tmp_path], Expected(SHAPE))
    items = open_items([tmp_path], Expected(SHAPE), skip=True)
    assert [item.name for item in items.read(0, 9) if item.value is None] == [name]
    assert len(items) == 7 and items.fingerprint()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_text(tmp_path):
    home = tmp_path / "in"
    home.mkdir()
    names = [os.fsdecode(b"a\xff.npy"), os.fsdecode(b"b\xfe.png"), "c" * 251 + ".png"]
    np.save(home / names[0], VALUES)
    grey(home / names[1])
    grey(home / names[2])
    (home / os.fsdecode(b"d\xfd.png")).write_bytes(b"no picture")
    items = open_items([home], Expected(SHAPE), skip=True)
    loaded = items.read(0, 8)
    told = [item.name for item in loaded] + [item.problem for item in loaded] + list(items.notes)
    "".join(told).encode()  # everything can be shown
    assert loaded[0].name == "a\\udcff.npy[0]" and "d\\udcfd.png cannot be read" in loaded[7].problem
    assert items.fingerprint()
    outputs = Outputs(items, tmp_path / "out", tmp_path, SHAPE)
    outputs.write(0, [item.value for item in loaded])
    outputs.begin(8)
    outputs.finish(0)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(names)


def test_rows_of_another_run_are_not_taken(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    items = open_items([tmp_path / "a.npy"], Expected(SHAPE))
    for wrong in (np.zeros((9, *SHAPE), np.float32), np.zeros((5, *SHAPE))):
        np.save(tmp_path / "rows-000000.npy", wrong)
        with pytest.raises(ValueError, match=r"rows-000000\.npy holds .* another run, delete it or give another `out`"):
            Outputs(items, tmp_path / "out", tmp_path, SHAPE).write(0, [torch.zeros(SHAPE)])


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", VALUES)
    outputs = Outputs(open_items([tmp_path / "a.npy"], Expected(SHAPE)), tmp_path / "out", tmp_path, SHAPE)
    signals = list(torch.from_numpy(VALUES))
    outputs.write(0, signals[:1])

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as patched,
        pytest.raises(OSError, match=r"No space left on device: '.*rows-000000\.npy'"),
    ):
        patched.setattr(os, "fsync", full)
        outputs.write(1, signals[1:])
    outputs.write(1, signals[1:])
    outputs.begin(len(signals))
    outputs.finish(0)
    assert np.array_equal(np.load(tmp_path / "out" / "a.npy"), VALUES)


def test_names_of_several_inputs(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        grey(tmp_path / name / "x.png")
    items = open_items([tmp_path / "one", tmp_path / "two"], Expected(SHAPE))
    assert [item.name for item in items.read(0, 2)] == ["one/x.png", "two/x.png"]
    with pytest.raises(ValueError, match=r"would both be written to x\.png"):
        open_items([tmp_path / "one" / "x.png", tmp_path / "two" / "x.png"], Expected(SHAPE))


def test_fingerprint_notices_a_change(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    before = open_items([tmp_path], Expected(SHAPE)).fingerprint()
    assert open_items([tmp_path], Expected(SHAPE)).fingerprint() == before
    np.save(tmp_path / "a.npy", VALUES[:4])
    assert open_items([tmp_path], Expected(SHAPE)).fingerprint() != before


def test_hdf5_without_the_package(tmp_path, monkeypatch):
    import sys

    (tmp_path / "a.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"pip install 'genprior\[hdf5\]'"):
        open_items([tmp_path / "a.h5"], Expected(SHAPE))


@pytest.mark.parametrize("ending", ["npz", "h5", "safetensors"])
def test_labels_beside_pictures_are_passed_over(tmp_path, ending):
    arrays = {"images": VALUES, "labels": np.arange(5), "whole": np.zeros((2, 6, 8), np.int64)}
    path = tmp_path / f"a.{ending}"
    if ending == "h5":
        with h5py.File(path, "w") as file:
            file.update(arrays)
    else:
        np.savez(path, **arrays) if ending == "npz" else save_file(arrays, path)
    items = open_items([path], Expected(SHAPE))
    assert [item.name for item in items.read(0, 9)] == [f"a.{ending}/images[{i}]" for i in range(5)]
    assert len(items.notes) == 2 and "labels has shape (5,)" in items.notes[0] and "whole" in items.notes[1]


def test_a_file_without_any_fitting_array_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.arange(5), more=np.zeros(3))
    with pytest.raises(ValueError, match=r"labels has shape \(5,\), expected \(1, 6, 8\)"):
        open_items([tmp_path / "a.npz"], Expected(SHAPE))


def test_a_damaged_array_is_not_passed_over(tmp_path):
    np.savez(tmp_path / "a.npz", x=VALUES, y=np.asfortranarray(VALUES))
    with pytest.raises(ValueError, match=r"Fortran order"):
        open_items([tmp_path / "a.npz"], Expected(SHAPE))


def test_the_same_file_twice(tmp_path, monkeypatch):
    path = grey(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    for inputs in (["a.png", "a.png"], ["a.png", str(path)], [str(tmp_path), "a.png"]):
        with pytest.raises(ValueError, match=r"a\.png was given twice"):
            open_items(inputs, Expected(SHAPE))
    (tmp_path / "b.png").symlink_to(path)
    assert len(open_items([tmp_path], Expected(SHAPE))) == 2, "a folder of links is no mistake"
