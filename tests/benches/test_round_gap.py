"""The bench of what lies between two rounds, at a small size."""

from __future__ import annotations

import sys

from benches.scenarios.round_gap import WARM_ROUNDS, markdown, measure


def test_less_lies_between_two_rounds_where_the_rest_is_done_beside() -> None:
    interval_s = sys.getswitchinterval()
    rows = measure(60)
    assert sys.getswitchinterval() == interval_s
    assert len(rows) == 5
    for row in rows:
        assert row["rounds"] >= 60 - WARM_ROUNDS // 2
        assert 0 < row["median_us"] <= row["p99_us"]
    assert rows[1]["median_us"] < rows[0]["median_us"]
    conditions = dict.fromkeys(
        ("cpu", "cpu_flags", "cores_usable", "system", "ignis", "commit", "command", "date"), "x"
    )
    text = markdown({"conditions": conditions | {"memory_bytes": 1}, "rows": rows})
    assert text.count("\n| ") == 6
