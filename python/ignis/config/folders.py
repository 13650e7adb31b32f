"""Where the platform keeps a user's cache and configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def _user_folder(environ: Mapping[str, str], variable: str, mac: str, other: str) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ignis"
    if sys.platform == "darwin":
        return home / mac / "ignis"
    # The XDG rules: a relative path in the variable is to be ignored.
    named = Path(environ.get(variable, ""))
    return (named if named.is_absolute() else home / other) / "ignis"


def user_cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for files that can be fetched again: `~/.cache/ignis` on Linux."""
    folder = _user_folder(environ, "XDG_CACHE_HOME", "Library/Caches", ".cache")
    return folder / "cache" if sys.platform == "win32" else folder


def user_config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that may hold `ignis.config.yaml`: `~/.config/ignis` on Linux."""
    return _user_folder(environ, "XDG_CONFIG_HOME", "Library/Application Support", ".config")
