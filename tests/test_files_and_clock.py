"""Files appear whole or not at all; the clock stops when told."""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from genprior import _clock
from genprior._clock import Clock, queue_of
from genprior._files import add_folder, printable, sync_folders, write_atomically, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_and_overwrite(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "Grüße\n")
    assert path.read_bytes() == "Grüße\n".encode()
    write_text(path, "two")
    assert path.read_text() == "two"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    "problem", [OSError(errno.ENOSPC, "No space left on device"), ValueError("own"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("existed", [True, False])
def test_failure_in_the_middle(tmp_path, problem, existed):
    path = tmp_path / "a.txt"
    if existed:
        path.write_text("old")

    def write(temporary):
        assert temporary.parent == tmp_path, "a move within one folder is atomic, across disks it is not"
        assert temporary != path
        temporary.write_text("ne")
        raise problem

    with pytest.raises(type(problem)):
        write_atomically(path, write)
    assert names(tmp_path) == (["a.txt"] if existed else [])
    assert not existed or path.read_text() == "old"


def test_old_file_is_there_until_the_move(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("new")
        assert path.read_text() == "old"

    write_atomically(path, write)
    assert path.read_text() == "new"


def test_failing_move(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_put_on_the_disk_while_open_for_writing(tmp_path, monkeypatch):
    """Windows refuses it for a file that is open for reading only."""
    fcntl = pytest.importorskip("fcntl")
    ways = []
    monkeypatch.setattr(
        os, "fsync", lambda number: ways.append(fcntl.fcntl(number, fcntl.F_GETFL) & (os.O_RDWR | os.O_WRONLY))
    )
    write_text(tmp_path / "a.txt", "new")
    assert ways[0] == os.O_RDWR


@pytest.fixture
def synced(monkeypatch):
    """What is put on the disk, and where it lies at that moment, in order."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    order = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: order.append(os.readlink(f"/proc/self/fd/{number}")) or fsync(number)
    )
    monkeypatch.setattr(Path, "replace", lambda path, new: order.append(f"move to {new}") or replace(path, new))
    return order


def test_a_new_file_survives_a_power_cut(tmp_path, synced):
    """First its content is put on the disk, then it gets its name, then the folder with the name."""
    write_text(tmp_path / "a.txt", "new")
    content, move, folder = synced
    assert content.endswith(".part") and move == f"move to {tmp_path / 'a.txt'}" and folder == str(tmp_path)


def test_folders_are_synced_once_for_many_files(tmp_path, synced):
    for name in "abc":
        write_atomically(tmp_path / name, lambda temporary: temporary.write_bytes(b"x"), sync=False)
    assert str(tmp_path) not in synced
    sync_folders([tmp_path] * 3)
    assert synced.count(str(tmp_path)) == 1


def test_new_folders_survive_a_power_cut(tmp_path, synced):
    add_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")], "the outer one first"
    add_folder(tmp_path / "a" / "b")
    assert len(synced) == 2, "and nothing where they are there"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_synced_folders(tmp_path, monkeypatch, code):
    fsync = os.fsync

    def refuse(number):
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(code, os.strerror(code))
        fsync(number)

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"


def full(temporary):
    raise OSError(errno.ENOSPC, "No space left on device")


def without_number(temporary):
    raise OSError("file write failed")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (full, r"No space left on device: '.*[/\\]a\.txt'"),
        (lambda temporary: (temporary / "none").write_text(""), r"\.part.none'"),
        (without_number, r"cannot write .*[/\\]a\.txt: file write failed"),
        (lambda temporary: None, r"No such file .*[/\\]a\.txt'"),
    ],
)
def test_errors_name_the_file(tmp_path, write, message):
    with pytest.raises(OSError, match=message):
        write_atomically(tmp_path / "a.txt", write)
    assert names(tmp_path) == []


def test_a_file_that_is_too_large_is_named(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*a\.txt'"):
            write_text(tmp_path / "a.txt", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 251 + ".txt", "\N{HIRAGANA LETTER A}" * 83 + ".txt"])
def test_names_as_long_as_there_are(tmp_path, name):
    write_text(tmp_path / name, "new")
    assert names(tmp_path) == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_text(tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff.txt")
    write_text(path, f"this is {path.name}")
    assert path.read_bytes() == b"this is a\\udcff.txt"
    assert printable(path.name) == "a\\udcff.txt" and printable("Grüße") == "Grüße"


def test_missing_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"cannot write .*a\.txt: the folder .*none does not exist, create it first"
    ):
        write_text(tmp_path / "none" / "a.txt", "x")
    assert names(tmp_path) == []


def test_writer_that_writes_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "a.txt", lambda temporary: None)
    assert names(tmp_path) == []


@pytest.fixture
def now(monkeypatch):
    moment = [10.0]
    monkeypatch.setattr(_clock.time, "perf_counter", lambda: moment[0])
    return moment


def test_clock_runs_and_stops(now):
    clock = Clock()
    now[0] += 2
    assert clock.seconds == 2
    with clock.stopped():
        now[0] += 100
        assert clock.seconds == 2
        with clock.stopped():
            now[0] += 100
        now[0] += 100
        assert clock.seconds == 2, "the inner block must not start the clock"
    now[0] += 3
    assert clock.seconds == 5


def test_clock_goes_on_after_an_error(now):
    clock = Clock()
    with pytest.raises(ValueError, match="inside"), clock.stopped():
        now[0] += 100
        raise ValueError("inside")
    now[0] += 1
    assert clock.seconds == 1


def test_clock_starts_where_a_stored_run_ended(now):
    clock = Clock(40.0)
    now[0] += 2
    assert clock.seconds == 42


def test_a_stopping_clock_waits_for_what_has_been_begun(now):
    def finish():
        now[0] += 7

    clock = Clock(settle=finish)
    with clock.stopped():
        assert clock.seconds == 0, "nobody reads"
    with clock.stopped(settle=True):
        assert clock.seconds == 7, "what was begun before belongs to the computing"
        with clock.stopped(settle=True):
            assert clock.seconds == 7, "it waits once"


def test_only_devices_with_a_queue_are_waited_for():
    assert queue_of(torch.device("cpu")) is None
    assert callable(queue_of(torch.device("cuda")))
    assert queue_of(torch.device("mps")) is torch.mps.synchronize
