"""The tokenizers that the tests of `ignis.text` share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from ignis.text import Tokenizer, from_gguf
from tests.unit.text import tiny

# The first example of a test also builds its tokenizer, which a time limit would call flaky.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

_CACHE = Path.home() / ".cache" / "ignis" / "models" / "smollm2-135m"


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """A tiny byte-level tokenizer."""
    return from_gguf(tiny.byte_level_metadata())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """A tiny SentencePiece tokenizer."""
    return from_gguf(tiny.sentencepiece_metadata())


@pytest.fixture(scope="session")
def model_metadata() -> dict[str, object]:
    """GGUF metadata of the default model, from IGNIS_TEST_MODEL or the cache."""
    from ignis import _native

    named = os.environ.get("IGNIS_TEST_MODEL")
    files = [Path(named)] if named else sorted(_CACHE.glob("*.gguf"))
    if not files or not files[0].exists():
        pytest.fail("no model file: run `ignis models fetch smollm2-135m`, or set IGNIS_TEST_MODEL")
    return _native.read_metadata(str(files[0]))


@pytest.fixture(scope="session")
def model_tokenizer(model_metadata: dict[str, object]) -> Tokenizer:
    """The default model's own tokenizer."""
    return from_gguf(model_metadata)
