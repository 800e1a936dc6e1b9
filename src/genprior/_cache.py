"""Where the user's cache is."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """``$GENPRIOR_CACHE``, or the system's cache folder."""
    chosen = os.environ.get("GENPRIOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "genprior"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "genprior"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genprior"
