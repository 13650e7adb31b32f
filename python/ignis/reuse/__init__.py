"""What is kept of earlier prompts, found again by content: policy only, no engine and no bytes."""

from ignis.reuse.entry import PLACES, Entry, Kind, Place
from ignis.reuse.index import Index, page_keys
from ignis.reuse.ledger import Ledger

__all__ = ["PLACES", "Entry", "Kind", "Place", "Index", "page_keys", "Ledger"]
