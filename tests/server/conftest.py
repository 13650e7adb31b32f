"""One server over the default model, for every test that talks to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.process import ServerProcess

LANES = 4


@pytest.fixture(scope="module")
def served() -> Iterator[ServerProcess]:
    """`ignis serve` with the default model, small enough for any machine."""
    words = ["-m", "ignis", "serve", "--server-bind", "127.0.0.1:0", "--log-format", "json"]
    sizes = ["--model-max-context", "2048", "--model-lanes", str(LANES)]
    with ServerProcess([*words, *sizes]) as server:
        yield server.wait_ready()
        assert server.status is None, f"it ended with {server.status}: {server.errors}"
