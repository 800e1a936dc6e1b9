"""WebDataset shards: read in place, refused where they are not what they should be, and written with the same keys."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from genprior import samples
from genprior.files import Outputs, open_items, shard_output, tars
from genprior.files.expected import Expected
from genprior.jobs.recover import recover
from genprior.jobs.settings import Recovery

SHAPE = (1, 6, 8)
VALUES = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
EXPECTED = Expected(SHAPE)


def image(number, form="png", deep=False):
    pixels = VALUES[number, 0] * (65535 if deep else 255)
    store = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint16 if deep else np.uint8)).save(store, form)
    return store.getvalue()


def npy(values):
    store = io.BytesIO()
    np.save(store, values)
    return store.getvalue()


def shard(path, members, **more):
    """An archive of names with contents, or of headers."""
    with tarfile.open(path, "w", **more) as archive:
        for name, content in members:
            entry = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


MEMBERS = [
    ("./", tarfile.TarInfo("./")),
    ("000.cls", b"3"),
    ("000.png", image(0)),
    ("train/001.json", b'{"a": 1}'),
    ("train/001.left.bmp", image(1, "bmp")),
    ("train/001.txt", b"x" * 3000),
    ("002.npy", npy(VALUES[2])),
    ("002.txt", "é".encode()),
    ("v1.0/é.npy", npy(VALUES[3, 0])),
    ("deep.png", image(4, deep=True)),
    ("README", b"no key"),
    (".hidden", b"no key"),
]
for entry in MEMBERS:
    if isinstance(entry[1], tarfile.TarInfo):
        entry[1].type = tarfile.DIRTYPE
NAMES = ["000", "train/001", "002", "v1.0/é", "deep"]


@pytest.fixture
def path(tmp_path):
    return shard(tmp_path / "shard-000000.tar", MEMBERS)


@pytest.mark.parametrize("step", [1, 2, 9])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_the_items_of_a_shard(tmp_path, step, form):
    path = shard(tmp_path / "a.tar", [*MEMBERS, ("k" * 300 + ".npy", npy(VALUES[0]))], format=form)
    items = open_items([path], EXPECTED)
    loaded = [item for start in range(0, len(items), step) for item in items.read(start, start + step)]
    assert [item.name for item in loaded] == [f"a.tar/{name}" for name in (*NAMES, "k" * 300)]
    for number, item in enumerate(loaded):
        assert item.value.shape == SHAPE and item.value.dtype == torch.float32
        assert np.abs(item.value.numpy() - VALUES[number % 5]).max() <= 0.5 / 255 + 1e-6
    assert torch.equal(items.read(3, 4)[0].value, loaded[3].value), "backwards"


def test_a_folder_of_shards_in_another_process(path, tmp_path, monkeypatch):
    shard(tmp_path / "shard-000001.tar", MEMBERS[:3])
    monkeypatch.chdir(tmp_path)
    items = open_items(["."], EXPECTED)
    expected = items.read(0, 6)
    sent = pickle.dumps(items)
    os.chdir("/")
    copy = pickle.loads(sent)
    found = copy.read(0, 6)
    assert [item.name for item in found] == [item.name for item in expected] and found[5].name == "shard-000001.tar/000"
    assert all(torch.equal(one.value, other.value) for one, other in zip(found, expected, strict=True))
    os.utime(path, (1, 1))
    assert copy.missing(0, 5) == [path] and copy.missing(5, 6) == []


def test_the_index_is_small(tmp_path):
    path = shard(tmp_path / "a.tar", [(f"{n:06d}.npy", npy(VALUES[0])) for n in range(2000)])
    assert len(pickle.dumps(open_items([path], EXPECTED))) < 10 * 2000


def recovered(items, tmp_path, signals=None, step=2, shape=SHAPE):
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    outputs = Outputs(items, tmp_path / "out", work, shape)
    outputs.begin(step)
    signals = [1 - item.value for item in items.read(0, len(items))] if signals is None else signals
    for start in range(0, len(items), step):
        assert not list((tmp_path / "out").iterdir()), "only when it is complete"
        outputs.write(start, signals[start : start + step])
        outputs.finish(start // step)
    assert not list(work.iterdir())
    return tmp_path / "out" / items.parts[0].output


def contents(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def test_the_same_keys_come_back(path, tmp_path):
    out = recovered(open_items([path], EXPECTED), tmp_path)
    found = contents(out)
    assert out.name == path.name and [*found] == [
        "000.cls", "000.png", "train/001.json", "train/001.left.png", "train/001.txt", "002.npy", "002.txt", "v1.0/é.npy",
        "deep.png"
    ]  # fmt: skip
    given = dict(MEMBERS)
    for name in ("000.cls", "train/001.json", "train/001.txt", "002.txt"):
        assert found[name] == given[name]
    for number, name in ((0, "000.png"), (1, "train/001.left.png"), (4, "deep.png")):
        with Image.open(io.BytesIO(found[name])) as opened:
            assert (opened.mode == "I;16") == (number == 4), "sixteen bits are kept"
            most = 65535 if number == 4 else 255
            assert np.abs(np.asarray(opened) / most - (1 - VALUES[number, 0])).max() <= 1.01 / most
    assert np.array_equal(np.load(io.BytesIO(found["002.npy"])), 1 - VALUES[2])
    assert np.array_equal(np.load(io.BytesIO(found["v1.0/é.npy"])), 1 - VALUES[3, 0]), "in the layout of the input"


def test_the_same_results_are_the_same_bytes(path, tmp_path):
    items = open_items([path], EXPECTED)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = recovered(items, tmp_path / "one"), recovered(items, tmp_path / "two", step=5)
    assert one.read_bytes() == two.read_bytes() and len(one.read_bytes()) % tarfile.RECORDSIZE == 0
    with tarfile.open(one) as archive:
        assert all((e.mtime, e.uid, e.gid, e.uname, e.mode) == (0, 0, 0, "", 0o644) for e in archive)


def test_a_key_without_a_result_is_left_out(path, tmp_path):
    out = recovered(open_items([path], EXPECTED), tmp_path, [None, *map(torch.from_numpy, VALUES[1:])])
    assert [*contents(out)][:2] == ["train/001.json", "train/001.left.png"]


def test_signals_that_are_no_images(path, tmp_path):
    out = recovered(open_items([path], EXPECTED), tmp_path, [torch.arange(3.0)] * 5, shape=(3,))
    found = contents(out)
    assert "train/001.left.npy" in found and np.array_equal(np.load(io.BytesIO(found["000.npy"])), [0, 1, 2])


@pytest.mark.parametrize("change", [lambda path: os.utime(path, (1, 1)), lambda path: path.unlink()])
def test_a_shard_that_changed_gives_its_results_alone(path, tmp_path, change):
    """Labels of another version do not belong to them."""
    items = open_items([path], EXPECTED)
    signals = [item.value for item in items.read(0, 5)]
    change(path)
    out = recovered(items, tmp_path, signals)
    assert [*contents(out)] == ["000.png", "train/001.left.png", "002.npy", "v1.0/é.npy", "deep.png"]
    assert "without what was carried along in archives" in items.changes()[0]


@pytest.mark.parametrize("at", ["the middle", "the end"])
def test_a_shard_that_changes_while_it_is_copied(path, tmp_path, monkeypatch, at):
    items = open_items([path], EXPECTED)
    signals = [item.value for item in items.read(0, 5)]
    plain = shard_output._npy

    def changed(values):
        os.truncate(path, 4000) if at == "the middle" else os.utime(path, (1, 1))
        return plain(values)

    monkeypatch.setattr(shard_output, "_npy", changed)
    assert [*contents(recovered(items, tmp_path, signals, step=5))] == [
        "000.png", "train/001.left.png", "002.npy", "v1.0/é.npy", "deep.png"
    ]  # fmt: skip


def test_one_damaged_member_does_not_spoil_the_others(tmp_path):
    bad = npy(np.full(SHAPE, np.nan, np.float32))
    members = [
        ("0.png", image(0)), ("1.png", b"no"), ("2.npy", bad), ("3.npy", npy(VALUES)), ("4.npy", npy(VALUES[0])[:-4]),
        ("5.npy", npy(np.zeros((9, 9), np.float32))), ("6.npy", npy(np.asfortranarray(VALUES[1]))), ("7.npy", b"\x93NUMPY"),
        ("8.npy", npy(np.zeros(SHAPE, complex))), ("9.npy", npy((VALUES[0] * 255).astype(np.uint8))),
    ]  # fmt: skip
    items = open_items([shard(tmp_path / "a.tar", members)], EXPECTED)
    loaded = items.read(0, 10)
    assert [item.value is None for item in loaded] == [n not in (0, 6, 9) for n in range(10)]
    assert np.array_equal(loaded[6].value.numpy(), VALUES[1])
    for number, message in {
        1: "a.tar/1.png cannot be read as an image", 2: "48 NaN", 3: "holds 5 items, expected one for each key",
        4: r"declares the shape (1, 6, 8), but", 5: "has shape (9, 9), expected (1, 6, 8)", 7: "cannot be read as an array",
        8: "holds complex numbers",
    }.items():  # fmt: skip
        assert message in loaded[number].problem


def special(name, kind, **more):
    entry = tarfile.TarInfo(name)
    entry.type = kind
    for key, value in more.items():
        setattr(entry, key, value)
    return (name, entry)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "0.png", "GNU.sparse.realsize": "9"}
GOOD = [("0.png", image(0))]
REFUSED = {
    "link": ([*GOOD, special("1.png", tarfile.SYMTYPE, linkname="/etc/passwd")], "holds 1.png, which is a link"),
    "hard link": ([*GOOD, special("1.png", tarfile.LNKTYPE, linkname="0.png")], "holds 1.png, which is a link"),
    "device": ([special("0.png", tarfile.CHRTYPE)], "which is a link, a device or a sparse file"),
    "pipe": ([special("0.png", tarfile.FIFOTYPE)], "which is a link, a device or a sparse file"),
    "unknown": ([special("0.png", b"Z")], "which is a link, a device or a sparse file"),
    "out of a folder": ([("../0.png", image(0))], "holds the name ../0.png"),
    "absolute": ([("/0.png", image(0))], "holds the name /0.png"),
    "key again": ([*GOOD, ("1.png", image(1)), ("0.txt", b"")], "holds the key 0 twice"),
    "name again": ([*GOOD, *GOOD], "holds 0.png twice"),
    "two items": ([*GOOD, ("0.npy", b"")], "several images or arrays for 0 (png, npy): choose one by its ending, a.tar:png"),
    "no item": ([*GOOD, ("1.txt", b"")], "holds 1 (txt) without an image or .npy array"),
    "nothing": ([("README", b"")], "holds no file"),
    "wrong size": ([("0.npy", npy(VALUES[:, :, 1:]))], "has shape (5, 1, 5, 8), expected (1, 6, 8)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_before_any_work(tmp_path, kind):
    members, message = REFUSED[kind]
    with pytest.raises(ValueError, match=r"a\.tar") as caught:
        open_items([shard(tmp_path / "a.tar", members)], EXPECTED)
    assert message in str(caught.value)


def test_a_sparse_member(tmp_path):
    entry = tarfile.TarInfo("0.png")
    entry.size, entry.pax_headers = 512, SPARSE
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(entry, io.BytesIO(b"1\n0\n9\n".ljust(512, b"\0")))
    with pytest.raises(ValueError, match=r"a\.tar holds 0\.png, which is a link, a device or a sparse file"):
        open_items([tmp_path / "a.tar"], EXPECTED)


def test_a_cut_archive(path):
    whole = path.read_bytes()
    ends = whole.rstrip(b"\0")
    for cut in [*range(1, len(ends) + 512, 499), 512 * -(-len(ends) // 512)]:
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"shard-000000\.tar.*(truncated|cannot be read as a tar archive)"):
            open_items([path], EXPECTED)


def test_damage_is_not_taken_for_the_end(path):
    """The standard library stops at a header that makes no sense, and says nothing."""
    whole = bytearray(path.read_bytes())
    place = next(member.place for member in tars.members(path) if member.name == "002.npy") - 512
    whole[place + 150] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=rf"is damaged at byte {place}"):
        open_items([path], EXPECTED)


def test_archives_put_together_by_cat(path):
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(ValueError, match="goes on after its end"):
        open_items([path], EXPECTED)


def test_a_header_of_a_gigabyte(tmp_path):
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 10**9
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(2 * 10**9)
    with pytest.raises(ValueError, match=r"a\.tar has a header that declares 1000000\d+ bytes"):
        open_items([tmp_path / "a.tar"], EXPECTED)


def test_too_many_members(path, monkeypatch):
    monkeypatch.setattr(tars, "MOST_MEMBERS", 5)
    with pytest.raises(ValueError, match="more than 5 members: split it"):
        open_items([path], EXPECTED)


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar", "w:gz"), ("a.tar", "w:xz")]
)
def test_compressed_archives_are_refused_with_the_way_out(tmp_path, name, mode):
    with tarfile.open(tmp_path / name, mode):
        pass
    with pytest.raises(ValueError, match=rf"{name} is compressed .*: decompress it first, to a \.tar"):
        open_items([tmp_path / name], EXPECTED)


def test_one_of_several_images_by_its_ending(tmp_path):
    members = [(f"{n}.{name}", image(n + (name == "b.png"))) for n in range(3) for name in ("a.png", "b.png", "a.txt")]
    path = shard(tmp_path / "a.tar", members)
    items = open_items([f"{path}:b.png"], EXPECTED)
    assert np.abs(items.read(1, 2)[0].value.numpy() - VALUES[2]).max() < 0.01
    found = contents(recovered(items, tmp_path))
    assert found["1.a.png"] == image(1) and found["1.b.png"] != image(2)
    with pytest.raises(
        ValueError, match=r"holds 0 \(a\.png, b\.png, a\.txt\) without an image or \.npy array \.c\.png"
    ):
        open_items([f"{path}:c.png"], EXPECTED)
    with pytest.raises(ValueError, match="given with several endings"):
        open_items([f"{path}:a.png", f"{path}:b.png"], EXPECTED)
    members = [("0.a.webp", image(0, "webp")), ("0.a.png", image(0))]
    with pytest.raises(ValueError, match=r"holds 0\.a\.png, the name of the result for 0\.a\.webp"):
        open_items([f"{shard(path, members)}:a.webp"], EXPECTED)


def test_a_shard_that_cannot_be_used_is_left_out(path, tmp_path):
    (tmp_path / "bad.tar").write_bytes(path.read_bytes()[:2000])
    items = open_items([tmp_path], EXPECTED, skip=True)
    assert [item.value is None for item in items.read(0, 9)] == [True, *[False] * 5]


def test_a_job(tmp_path):
    digits, _ = samples.digits(3)
    members = [
        (f"{n}.{ending}", content)
        for n in range(3)
        for ending, content in (("npy", npy(digits[n].numpy())), ("cls", b"1"))
    ]
    path = shard(tmp_path / "digits.tar", members)
    job = Recovery(
        inputs=(str(path),), out=tmp_path / "out", operator="downsample:2", simulate=True, steps=3, batch_size=2
    )
    outcome = recover(job)
    found = contents(job.out / "recovered" / "digits.tar")
    assert outcome.total == 3 and [*found] == [name for name, _ in members]
    first = (job.out / "recovered" / "digits.tar").read_bytes()
    (job.out / "recovered" / "digits.tar").unlink()
    recover(job)
    assert (job.out / "recovered" / "digits.tar").read_bytes() == first, "made again, the same"
