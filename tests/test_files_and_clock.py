"""Files appear whole or not at all; the clock stops when told."""

import errno
import os
import sys

import pytest
import torch

from genprior import _clock
from genprior._clock import Clock, queue_of
from genprior._files import printable, write_atomically, write_text


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
    assert ways == [os.O_RDWR]


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
