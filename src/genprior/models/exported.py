"""Programs that ``torch.export.save`` wrote, without the ways in which such a file could run code while it is opened.

``torch.export.load`` unpickles, imports, evaluates text and resolves names that stand in the file. What is handed to it is
therefore not the file: it is a new archive in memory that holds only the records a plain network needs, each of them checked.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from genprior.files.guard import Unreadable, reading
from genprior.files.limits import LARGEST_INDEX, readable
from genprior.models.archive import check_records
from genprior.models.program import check_samples, check_texts, checked_program
from genprior.models.weights import refuse_pickled_code

_PROGRAM = "models/model.json"
_PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|data/(weights/weight|constants/tensor)_\d+"
)
_CONFIG = re.compile(r"data/(weights|constants)/model_\1_config\.json")
_PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/model\.pt")
_SAMPLES = "data/sample_inputs/model.pt"
_PAYLOAD = re.compile(r"(weight|tensor)_\d+")


def load_exported(path: Path) -> nn.Module:
    """The network of a ``torch.export`` file, in eval mode."""
    program: Any = torch.export.load(checked_archive(path)).module()
    plain: nn.Module = torch.fx.GraphModule(
        program, program.graph
    )  # what torch gives refuses .eval(), though it is in eval mode
    for parameter in plain.parameters():
        parameter.requires_grad_(False)
    return plain


def checked_archive(path: Path) -> io.BytesIO:
    """The records of a file that a plain network needs, checked, in an archive of our own making.

    Readers of zip files disagree about forged ones, in which a name stands twice or in another case: one that checks the file
    and one that loads it need not see the same. Here both see what was checked.
    """
    with path.open("rb") as file:
        check_records(file, path)
    with reading(path, "a torch.export file"), zipfile.ZipFile(path) as archive:
        records = _records(archive, path)
        if _PROGRAM not in records:
            raise Unreadable(f"{path} holds no {_PROGRAM}: save the program with torch.export.save(program, file)")
        copy = io.BytesIO()
        with zipfile.ZipFile(copy, "w") as new:
            for name, entry in records.items():
                if name.endswith(".json") and entry.file_size > LARGEST_INDEX:
                    raise Unreadable(f"{path} holds {name} of {readable(entry.file_size)}: no network is so long")
                new.writestr(f"program/{name}", _checked(name, archive.read(entry), path))
            _check_sizes(records, archive, path)
    copy.seek(0)
    return copy


def exported_latent(module: nn.Module) -> tuple[int | None, tuple[int, ...]] | None:
    """Batch (None: any) and latent shape that a torch.export program was made for; None for other modules."""
    if not isinstance(module, torch.fx.GraphModule):
        return None
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.ndim > 1:
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            if None not in sizes[1:]:
                return sizes[0], tuple(int(size) for size in value.shape[1:])
    return None


def _records(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """What is read of the file, by the name below its root folder."""
    entries = archive.infolist()
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename.casefold()
        if name in seen or entry.orig_filename != entry.filename or "\\" in name:
            raise Unreadable(
                f"{path} holds the name {entry.filename!r} twice, or in an odd spelling: refused as forged"
            )
        seen.add(name)
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise Unreadable(f"{path} holds more than its size allows (packed or overlapping records): save it anew")
    named = {entry.filename.partition("/")[2]: entry for entry in entries}
    needed = (_PLAIN, _CONFIG, _PICKLED)
    return {name: e for name, e in named.items() if name == _PROGRAM or any(rule.fullmatch(name) for rule in needed)}


def _checked(name: str, content: bytes, path: Path) -> bytes:
    if _CONFIG.fullmatch(name):
        _check_payloads(json.loads(content), path)
    elif _PICKLED.fullmatch(name):
        data = refuse_pickled_code(path, content)
        if name == _SAMPLES:
            check_samples(data, path)
    elif name == _PROGRAM:
        return json.dumps(checked_program(json.loads(content), path)).encode()
    return content


def _check_payloads(config: Any, path: Path) -> None:
    """Plain dense tensors only: torch unpickles the rest, some of it by the name of its record alone."""
    check_texts(config, path)
    for key, entry in config["config"].items():
        if entry.get("use_pickle") or not _PAYLOAD.fullmatch(entry["path_name"]):
            raise Unreadable(
                f"{path} holds {key} as a pickle, which could run any code: refused; export it as a plain dense tensor"
            )


def _check_sizes(records: dict[str, zipfile.ZipInfo], archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse tensors that are declared larger than their records: one number could stand for billions."""
    for name in filter(_CONFIG.fullmatch, records):
        for key, entry in json.loads(archive.read(records[name]))["config"].items():
            declared = math.prod(size["as_int"] for size in entry["tensor_meta"]["sizes"])
            record = records.get(f"{name.rpartition('/')[0]}/{entry['path_name']}")
            if record is None or declared > record.file_size:
                raise Unreadable(f"{path} holds {key} of {declared} values without as many: damaged, or forged")
