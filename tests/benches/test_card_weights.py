"""Random checkpoints of `benches.card` are what the core reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from benches.card.weights import write_gguf
from ignis import _native

# hidden, ffn, heads, kv_heads, head_dim, layers, vocab
SMALL = (256, 512, 4, 2, 64, 2, 1024)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K", "Q6_K"])
def test_a_small_one_loads_and_answers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    read = write_gguf(path, kind, SMALL)
    assert 0 < read < path.stat().st_size
    found = _native.inspect(str(path))
    assert (found.architecture, found.layers, found.vocab) == ("qwen3", 2, 1024)
    needs = _native.needs(str(path), _native.Limits(1, 64, 128, 2), _native.DeviceOptions("cuda"))
    weights = dict(needs.lines)["weights"]
    assert 0 <= path.stat().st_size - weights < 64 << 10
