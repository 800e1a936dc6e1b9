"""The log of records: whatever happens to its files, what was on the disk is there, and nothing else."""

import errno
import os
import random
from contextlib import contextmanager

import pytest
import torch

from genprior import _segments
from genprior._journal import Damaged, Record
from genprior._segments import Log

RECORDS = {
    number: Record({"number": number, "a": ["é\n" * number, None, {"b": 0.1 + 0.2}]}, tensors)
    for number, tensors in enumerate(
        [{}, {"image": torch.arange(6.0).view(2, 3).T, "empty": torch.zeros(0, 2)}, {}, {}]
    )
}


def same(left, right):
    assert left.meta == right.meta and left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]) and tensor.dtype == right.tensors[name].dtype


def assert_holds(log, numbers):
    """These records, whole and by number, and no others."""
    assert list(log.numbers()) == sorted(numbers) and len(log) == len(numbers)
    found = dict(log.records())
    assert list(found) == sorted(numbers)
    for number, record in found.items():
        same(record, RECORDS[number])


@pytest.fixture
def fast(monkeypatch):
    """Nothing waits for the disk, in tests that write thousands of files."""
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def written(tmp_path):
    """A log of four records, not in order; its only file; and where its records end."""
    log, ends = Log(tmp_path, "me"), []
    for number in (2, 0, 3, 1):
        log.append(number, RECORDS[number])
        ends.append((tmp_path / "records-000000.log").stat().st_size)
    return tmp_path / "records-000000.log", (2, 0, 3, 1), ends


def test_any_order_comes_back_by_number(written):
    log = Log(written[0].parent, "me")
    assert_holds(log, [0, 1, 2, 3])
    assert [number for number, _ in log.records([3, 7, 0])] == [3, 0] and 7 not in log and -1 not in log
    assert not log.notes


def test_the_last_record_of_a_number_counts(tmp_path):
    log = Log(tmp_path, "me")
    for number in (1, 0, 1):
        log.append(number, Record({"time": len(log)}, {}))
    for each in (log, Log(tmp_path, "me")):
        assert {number: record.meta["time"] for number, record in each.records()} == {0: 1, 1: 2} and len(each) == 2


def test_what_is_forgotten_stays_so(written, monkeypatch):
    monkeypatch.setattr(_segments, "_AT_ONCE", 2)
    log = Log(written[0].parent, "me")
    log.forget([0, 1, 2, 9])
    size = written[0].stat().st_size
    log.forget([0, 9])
    assert written[0].stat().st_size == size, "nothing to forget, nothing written"
    for each in (log, Log(written[0].parent, "me")):
        assert_holds(each, [3])
    log.append(1, RECORDS[1])
    for each in (log, Log(written[0].parent, "me")):
        assert_holds(each, [1, 3])


def test_a_damaged_note_of_what_is_forgotten_brings_nothing_back(written, fast):
    path, _, ends = written
    Log(path.parent, "me").forget([0, 1, 2])
    whole = path.read_bytes()
    for place in range(ends[-1], len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert_holds(Log(path.parent, "me"), [3])


def test_cut_at_every_byte(written, fast):
    """As a kill in the middle of an append leaves it: the records before are kept, and the log goes on."""
    path, numbers, ends = written
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        kept = [number for number, end in zip(numbers, ends, strict=True) if end <= size]
        log = Log(path.parent, "me")
        assert_holds(log, kept)
        assert not log.notes and path.stat().st_size == max([0, *(end for end in ends if end <= size)])
        if size % 8 == 0:
            log.append(1, RECORDS[1])
            assert_holds(Log(path.parent, "me"), {*kept, 1})


def test_flipped_anywhere(written, fast):
    """One record is lost, the others are kept; the damaged file is kept too; then all is well."""
    path, numbers, ends = written
    whole, aside = path.read_bytes(), path.with_name(f"{path.name}.damaged")
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        lost = next(number for number, end in zip(numbers, ends, strict=True) if place < end)
        log = Log(path.parent, "me")
        assert_holds(log, [number for number in numbers if number != lost])
        if aside.exists():
            assert aside.read_bytes() == spoilt
            assert len(log.notes) == 1 and f"{path} is damaged: a copy is kept as {aside}" in log.notes[0]
            aside.unlink()
        else:
            assert place >= ends[-2], "only a last record may pass for one that a kill has cut"
        if place % 8 == 0:
            log.append(lost, RECORDS[lost])
            again = Log(path.parent, "me")
            assert_holds(again, numbers)
            assert not again.notes


@pytest.mark.parametrize("hole", [(0, 5), (40, 300), (100, 101)])
def test_bytes_put_in_and_taken_out(written, hole):
    path, numbers, ends = written
    whole = path.read_bytes()
    for content in (whole[: hole[0]] + whole[hole[1] :], whole[: hole[0]] + b"gp\xf5\n" * 30 + whole[hole[0] :]):
        path.write_bytes(content)
        log = Log(path.parent, "me")
        assert len(log.notes) == 1 and set(log.numbers()) >= {
            number
            for number, start, end in zip(numbers, [0, *ends], ends, strict=False)
            if end <= hole[0] or start >= hole[1]
        }
        for number, record in log.records():
            same(record, RECORDS[number])


@pytest.mark.parametrize("block", range(5, 30))
def test_the_next_record_is_found_wherever_blocks_of_reading_end(written, monkeypatch, block):
    monkeypatch.setattr(_segments, "_BLOCK", block)
    path, numbers, _ = written
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert_holds(Log(path.parent, "me"), numbers[1:])


def test_segments_are_bounded_and_only_the_damaged_one_is_mended(tmp_path):
    log, order = Log(tmp_path, "me", segment=1000), random.Random(0).sample(range(40), 40)
    for number in order:
        log.append(number, Record({"number": number, "text": "x" * 200}, {}))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 10 and all(1000 <= path.stat().st_size < 1400 for path in files[:-1])
    before = {path: path.stat().st_mtime_ns for path in files}
    content = bytearray(files[4].read_bytes())
    content[500] ^= 1
    files[4].write_bytes(content)
    again = Log(tmp_path, "me", segment=1000)
    lost = set(range(40)) - set(again.numbers())
    assert len(lost) == 1 and lost < set(order[16:20])
    assert [path for path in files if path.stat().st_mtime_ns != before[path]] == [files[4]]
    assert all(record.meta["number"] == number for number, record in again.records())
    files[2].unlink()
    assert set(range(40)) - set(Log(tmp_path, "me", segment=1000).numbers()) == lost | set(order[8:12])


def test_a_torn_end_of_a_full_segment_is_damage(tmp_path):
    log = Log(tmp_path, "me", segment=100)
    for number in range(3):
        log.append(number, RECORDS[number])
    first = tmp_path / "records-000000.log"
    first.write_bytes(first.read_bytes()[:-1])
    again = Log(tmp_path, "me", segment=100)
    assert_holds(again, [1, 2])
    assert len(again.notes) == 1 and (tmp_path / "records-000000.log.damaged").exists()


def test_records_of_another_job_do_not_count(written):
    log = Log(written[0].parent, "you")
    assert len(log) == 0 and len(log.notes) == 1


def test_damage_after_opening_is_an_error(written):
    path, _, ends = written
    log = Log(path.parent, "me")
    content = bytearray(path.read_bytes())
    content[ends[0] - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"records-000000\.log is damaged: the same command"):
        list(log.records())
    assert [number for number, _ in log.records([0, 1, 3])] == [0, 1, 3]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fault", ["write", "fsync", "cut too"])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path, monkeypatch, first, fault):
    log, kept = Log(tmp_path, "me"), [] if first else [0]
    for number in kept:
        log.append(number, RECORDS[number])
    size = (tmp_path / "records-000000.log").stat().st_size if kept else 0

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(file, content):
        file.write(content[:60] + bytes(300))
        full()

    with monkeypatch.context() as patched:
        if fault == "fsync":
            patched.setattr(os, "fsync", full)
        else:
            patched.setattr(_segments, "_write_all", half)
        if fault == "cut too":
            patched.setattr(_segments, "_shorten", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*records-000000\.log'"):
            log.append(1, RECORDS[1])
    assert_holds(log, kept)
    if fault != "cut too":
        assert_holds(Log(tmp_path, "me"), kept)
        assert (tmp_path / "records-000000.log").stat().st_size == size
    log.append(2, RECORDS[2])
    for each in (log, Log(tmp_path, "me")):
        assert_holds(each, [*kept, 2])
        assert not each.notes


def test_ctrl_c_after_a_record_was_written(tmp_path, monkeypatch):
    """It does not count, and the next one takes its place."""
    log = Log(tmp_path, "me")
    log.append(0, RECORDS[0])

    @contextmanager
    def pressed(path):
        yield
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(_segments, "writing", pressed)
        log.append(3, Record({"text": "x" * 1000}, {}))
    assert_holds(log, [0])
    log.append(2, RECORDS[2])
    for each in (log, Log(tmp_path, "me")):
        assert_holds(each, [0, 2])
        assert not each.notes


def test_a_disk_that_takes_a_few_bytes_at_a_time(tmp_path):
    class Slow:
        def __init__(self):
            self.content = b""

        def write(self, content):
            self.content += bytes(content[:7])
            return min(7, len(content))

    slow = Slow()
    _segments._write_all(slow, bytes(range(200)))
    assert slow.content == bytes(range(200))


def test_records_are_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino) or fsync(number))
    log = Log(tmp_path, "me")
    log.append(0, RECORDS[0])
    file = (tmp_path / "records-000000.log").stat().st_ino
    assert synced == [file, tmp_path.stat().st_ino], "the file, and its name"
    log.append(1, RECORDS[1])
    assert synced[2:] == [file]


def test_an_index_of_eight_bytes_a_number(tmp_path):
    log = Log(tmp_path, "me")
    log.append(100_000, RECORDS[0])
    assert log._places.itemsize * len(log._places) == 8 * 100_001
    with pytest.raises(ValueError, match="number must be at least 0"):
        log.append(-1, RECORDS[0])
