"""What an operator asks for: one table of options, and every way to set one.

This package knows no model and no device: it reads values and remembers where each came from.
"""

from ignis.config.folders import user_cache_folder, user_config_folder
from ignis.config.kinds import Bind, PoolSize
from ignis.config.load import Config, Source, load_config
from ignis.config.option import Option
from ignis.config.options import OPTIONS, PROFILES

__all__ = [
    "Config",
    "load_config",
    "Source",
    "Option",
    "OPTIONS",
    "PROFILES",
    "Bind",
    "PoolSize",
    "user_cache_folder",
    "user_config_folder",
]
