"""Records on disk that belong to one job: written whole or not at all, checked when read, refused for another job."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from genprior._files import set_aside, write_atomically, write_text

_SIZE = 8
"""Bytes at the start of a safetensors file that hold the length of its head."""
_SEAL = b'"sha256":"'
"""The bytes before the digest in the head."""
_UNSEALED = "0" * 64


class Unusable(ValueError):
    """A file that is no record of this job."""


class Damaged(Unusable):
    """The content differs from what was written."""


class OtherFormat(Unusable):
    """Undamaged, but of another version or another program."""

    def __init__(self, message: str, found: str) -> None:
        super().__init__(message)
        self.found = found
        """Its format, empty where it has none."""


class OtherJob(Unusable):
    """An undamaged record of another job."""


@dataclass(frozen=True)
class Record:
    """What one file holds."""

    meta: dict[str, Any]
    """Plain values, as JSON has them."""
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Journal:
    """Reads and writes the records of one job, each a safetensors file whose head holds the plain values as JSON."""

    format: str
    """Name and version of the layout, such as ``genprior-parts-1``."""
    owner: str
    """Digest of all that makes the job what it is: a record of another job is refused."""

    @classmethod
    def of(cls, format: str, identity: dict[str, Any]) -> Journal:
        """The journal of the job that these plain values describe."""
        return cls(format, owner_of(identity))

    def write(self, path: Path, meta: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> None:
        """Store a record, or leave the old file as it is."""
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in (tensors or {}).items()}
        head = {"format": self.format, "owner": self.owner, "meta": json.dumps(meta), "sha256": _UNSEALED}
        head["names"] = json.dumps(list(plain))  # in this order; the container sorts them
        content = save(plain, metadata=head)
        sealed = content.replace(_SEAL + _UNSEALED.encode(), _SEAL + _digest(content), 1)
        write_atomically(path, lambda temporary: temporary.write_bytes(sealed))

    def read(self, path: Path) -> Record | None:
        """The record in a file, None without a file; :class:`Unusable` unless it is an undamaged record of this job."""
        if not path.is_file():
            return None
        content = path.read_bytes()
        head = _head(path, content)
        if head.get("format") != self.format:
            raise OtherFormat(f"{path} is not of the format {self.format}", str(head.get("format", "")))
        if head.get("sha256") != _digest(content).decode():
            raise Damaged(f"{path} is damaged")
        if head.get("owner") != self.owner:
            raise OtherJob(f"{path} belongs to another job")
        tensors = load(content)
        return Record(json.loads(head["meta"]), {name: tensors[name] for name in json.loads(head["names"])})

    def read_or_set_aside(self, path: Path, notes: list[str]) -> Record | None:
        """The record in a file; an unusable one is renamed, with a note, so that its part of the job is done again."""
        try:
            return self.read(path)
        except Unusable as problem:
            notes.append(f"{problem}: set aside as {set_aside(path)}, and what it held is done again")
            return None


def owner_of(identity: dict[str, Any]) -> str:
    """A digest of the plain values that describe a job."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def agree(path: Path, identity: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compare a job with the one in a JSON file: what was and what is, by name, where they differ. Writes the first one."""
    wanted = json.loads(json.dumps(identity, allow_nan=False))
    if not path.is_file():
        write_text(path, json.dumps(wanted, indent=2) + "\n")
        return {}
    try:
        stored = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise Damaged(f"{path} is damaged")
    names = [name for name in stored | wanted if stored.get(name) != wanted.get(name)]
    return {name: (stored.get(name), wanted.get(name)) for name in names}


def differences(changed: dict[str, tuple[Any, Any]]) -> str:
    """In words."""
    return "; ".join(f"{name} was {_brief(before)}, now {_brief(now)}" for name, (before, now) in changed.items())


def _head(path: Path, content: bytes) -> dict[str, Any]:
    """The plain values in the head of a safetensors file, which may be anything."""
    end = _SIZE + int.from_bytes(content[:_SIZE], "little")
    try:
        head = json.loads(content[_SIZE:end])
    except (ValueError, RecursionError) as problem:
        raise Damaged(f"{path} is no record, or a damaged one ({problem})") from None
    found = head.get("__metadata__") if isinstance(head, dict) else None
    return found if isinstance(found, dict) else {}


def _digest(content: bytes) -> bytes:
    """Of all bytes of a file but those of its seal."""
    at = content.find(_SEAL) + len(_SEAL)  # quotes inside of other text are escaped: the first one is the seal
    digest = hashlib.sha256(content[:at])
    digest.update(memoryview(content)[at + len(_UNSEALED) :])
    return digest.hexdigest().encode()


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
