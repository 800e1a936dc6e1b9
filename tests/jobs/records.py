"""Where the records of a job are in its log files, for tests that damage them."""

import json
import struct
from pathlib import Path

from genprior.jobs.ledger import Ledger

HEAD = struct.Struct("<4sQQ16s16s")


def log_files(out: Path) -> list[Path]:
    return sorted((out / ".job").glob("records-*.log"))


def spans(path: Path) -> list[tuple[int, int, int]]:
    """Number, start and end of every record of an undamaged file."""
    content, found, start = path.read_bytes(), [], 0
    while start < len(content):
        _, number, length, _, _ = HEAD.unpack_from(content, start)
        found.append((number, start, start + HEAD.size + length))
        start = found[-1][2]
    return found


def recorded(out: Path) -> list[int]:
    """The numbers of the records, in the order of the files."""
    return [number for path in log_files(out) for number, _, _ in spans(path)]


def spoil(out: Path, number: int, change=lambda content: bytes([content[0] ^ 1]) + content[1:]) -> Path:
    """Change the bytes of the only record of a number; returns its file."""
    for path in log_files(out):
        for found, start, end in spans(path):
            if found == number:
                content = path.read_bytes()
                path.write_bytes(content[:start] + change(content[start:end]) + content[end:])
                return path
    raise AssertionError(f"no record of {number}")


def ledger_of(out: Path) -> Ledger:
    """The ledger of a job that is there."""
    identity = json.loads((out / ".job" / "job.json").read_text())
    return Ledger(out, {name: value for name, value in identity.items() if name != "format"})
