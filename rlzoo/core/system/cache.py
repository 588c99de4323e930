"""The cache directory."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$RLZOO_CACHE`, or else `$XDG_CACHE_HOME/rlzoo`, or else `~/.cache/rlzoo`. Its files may be deleted."""
    if own := os.environ.get("RLZOO_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlzoo"
