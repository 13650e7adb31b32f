"""ignis: a language-model server that decides every byte at load."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ignis")
except PackageNotFoundError:  # the sources are used where they lie, without being installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
