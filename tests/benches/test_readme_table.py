"""The README quotes what was recorded, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from benches import readme_table


def test_the_readme_has_the_recorded_table() -> None:
    text = readme_table.README.read_text(encoding="utf-8")
    assert readme_table.PLACE.search(text)
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
