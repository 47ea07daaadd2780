"""Where data sets are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The folder `$CGQ_DATA` or, without it, `cgq` in the user's cache folder."""
    chosen = os.environ.get("CGQ_DATA")
    return Path(chosen).expanduser() if chosen else _user_cache() / "cgq"


def _user_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return cache if cache.is_absolute() else Path.home() / ".cache"
