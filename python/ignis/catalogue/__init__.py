"""Models by name: what they are, where they are kept, and how they are fetched.

This package knows no plan and no engine: it ends at a file or folder on this machine.
"""

from ignis.catalogue.entries import CATALOGUE, DEFAULT_ID, Entry
from ignis.catalogue.fetch import fetch, fetch_if_missing
from ignis.catalogue.locate import model_id, model_path

__all__ = [
    "CATALOGUE",
    "DEFAULT_ID",
    "Entry",
    "fetch",
    "fetch_if_missing",
    "model_id",
    "model_path",
]
