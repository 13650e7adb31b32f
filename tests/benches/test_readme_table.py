"""The README quotes what was recorded, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from benches import readme_table


def test_the_readme_has_the_recorded_tables() -> None:
    text = readme_table.README.read_text(encoding="utf-8")
    assert all(place.search(text) for place in readme_table.PLACES.values())
    assert text == readme_table.written(text), "run `python -m benches.readme_table`"


def test_the_newest_run_is_quoted_with_its_conditions(tmp_path: Path) -> None:
    for name, date, ours in (("a", "2026-01-02", 10.0), ("b", "2026-01-03", 30.0)):
        run = {
            "conditions": {
                "cpu": "a cpu",
                "cpu_flags": "avx2",
                "commit": "abc",
                "date": date,
                "command": "c",
            },
            "peer": "peer 1",
            "model": "m",
            "threads": 2,
            "repetitions": 1,
            "rows": [
                {
                    "row": "pp512",
                    "settled": True,
                    "why": "w",
                    "ours": [ours],
                    "peer": {"F16, flash attention on": [20.0]},
                    "peer_best": "F16, flash attention on",
                    "ratio_of_medians": ours / 20,
                }
            ],
        }
        (tmp_path / f"peers-{name}.json").write_text(json.dumps(run))
    found = readme_table.table(tmp_path)
    assert "| w (`pp512`) | 30 | 20 (F16) | 1.50 |" in found
    for condition in ("a cpu", "avx2", "abc", "2026-01-03", "`c`", "peer 1", "2 threads"):
        assert condition in found


def test_a_card_run_is_quoted_by_format_with_its_conditions(tmp_path: Path) -> None:
    rate = {"value": 1234.5}
    rows = dict.fromkeys(readme_table.CARD_ROWS, rate)
    run = {
        "conditions": {
            "card": "a card",
            "driver": "1.2",
            "commit": "abc",
            "date": "2026-01-02",
            "command": "c",
        },
        "models": [
            {"geometry": "g", "format": "bf16", "rows": rows},
            {"geometry": "g", "format": "q4_k", "rows": {"decode-1": {"value": 7.0}}},
            {"geometry": "g", "format": "bf16", "rows": {"ready": {"value": 3.0}}},
            {"failed": "why", "geometry": "g", "format": "q8_0"},
        ],
        "peers": [{"geometry": "g", "rows": {row: {"value": 10.0} for row in rows}}],
    }
    (tmp_path / "card-h200.json").write_text(json.dumps(run), encoding="utf-8")
    found = readme_table.card_table(tmp_path)
    assert "| tokens a second | bf16 | q4_k | transformers, bf16 |" in found
    assert "| g, one client | 1,234 | 7 | 10 |" in found
    assert "| g, eight clients together | 1,234 |  | 10 |" in found
    for condition in ("a card", "1.2", "abc", "2026-01-02", "`c`"):
        assert condition in found


def test_without_a_run_the_tables_say_so(tmp_path: Path) -> None:
    assert readme_table.card_table(tmp_path) == readme_table.table(tmp_path) == readme_table.NONE
