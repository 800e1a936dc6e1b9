"""Records: whole, checked, of one job; what is something else is told apart."""

import json

import pytest
import torch
from safetensors.torch import save_file

from genprior._journal import Damaged, Journal, OtherFormat, OtherJob, agree, differences

JOURNAL = Journal("genprior-test-2", "me")
META = {"text": "é", "number": 0.1 + 0.2, "none": None, "list": [1, {"inner": True}], "seal": '"sha256":"' + "0" * 64}
TENSORS = {
    "sha256": torch.arange(6, dtype=torch.float64).view(2, 3).T,
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(True),
    "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "text": torch.tensor(list(META["seal"].encode()), dtype=torch.uint8),
}


@pytest.fixture
def path(tmp_path):
    JOURNAL.write(tmp_path / "record", META, TENSORS)
    return tmp_path / "record"


def test_what_is_written_is_read(path):
    record = JOURNAL.read(path)
    assert record.meta == META and record.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        found = record.tensors[name]
        assert found.dtype == tensor.dtype and found.shape == tensor.shape
        assert torch.equal(found.nan_to_num(), tensor.nan_to_num())


def test_plain_values_alone(tmp_path):
    JOURNAL.write(tmp_path / "record", META)
    assert JOURNAL.read(tmp_path / "record").meta == META and JOURNAL.read(tmp_path / "none") is None


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    """All bytes: those of the head, of the seal and of the tensors."""
    whole = path.read_bytes()
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        with pytest.raises((Damaged, OtherFormat)):
            JOURNAL.read(path)
        path.write_bytes(whole[:place])
        with pytest.raises((Damaged, OtherFormat)):
            JOURNAL.read(path)
    path.write_bytes(whole)
    assert JOURNAL.read(path).meta == META


def test_records_of_others_are_told_apart(path):
    with pytest.raises(OtherJob, match="belongs to another job"):
        Journal(JOURNAL.format, "you").read(path)
    with pytest.raises(OtherFormat) as caught:
        Journal("genprior-test-3", "me").read(path)
    assert caught.value.found == "genprior-test-2"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(OtherFormat) as caught:
        JOURNAL.read(path)
    assert caught.value.found == ""


def test_owners_are_what_describes_them():
    assert Journal.of("f", {"a": 1, "b": 2}) == Journal.of("f", {"b": 2, "a": 1}) != Journal.of("f", {"a": 1, "b": 3})


def test_an_unusable_record_is_set_aside(path):
    notes = []
    assert JOURNAL.read_or_set_aside(path, notes).meta == META and not notes
    whole = path.read_bytes()
    assert Journal(JOURNAL.format, "you").read_or_set_aside(path, notes) is None and len(notes) == 1
    assert not path.exists() and path.with_name("record.damaged").read_bytes() == whole
    assert JOURNAL.read_or_set_aside(path, notes) is None and len(notes) == 1, "there is none"


def test_a_write_that_fails_leaves_the_old_record(path, monkeypatch):
    whole = path.read_bytes()

    def half(self, content):
        with self.open("wb") as file:
            file.write(content[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(type(path), "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        JOURNAL.write(path, {}, TENSORS)
    assert path.read_bytes() == whole and [entry.name for entry in path.parent.iterdir()] == ["record"]


def test_what_differs_between_two_jobs(tmp_path):
    path = tmp_path / "job.json"
    assert agree(path, {"a": (1, 2), "b": "x"}) == {} == agree(path, {"a": [1, 2], "b": "x"})
    changed = agree(path, {"a": [1, 3], "c": "y" * 100})
    assert changed == {"a": ([1, 2], [1, 3]), "b": ("x", None), "c": (None, "y" * 100)}
    assert differences(changed) == f"a was [1, 2], now [1, 3]; b was x, now None; c was None, now {'y' * 57}..."
    assert json.loads(path.read_text()) == {"a": [1, 2], "b": "x"}
    path.write_text("[]")
    with pytest.raises(Damaged):
        agree(path, {"a": 1})
