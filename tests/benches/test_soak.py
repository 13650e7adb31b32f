"""What a soak counts, and what fails it."""

from __future__ import annotations

import random
from typing import Any

from benches import soak
from benches.server import parse_metrics

METRICS = """\
ignis_kv_cache_evictions_total 3
ignis_kv_cache_resumes_total{tier="kv_ram"} 2
ignis_kv_cache_resumes_total{tier="disk"} 1
ignis_retained_state_hits_total{tier="device",kind="prefix"} 0
ignis_retained_state_hits_total{tier="kv_ram",kind="checkpoint"} 5
ignis_retained_state_discards_total{tier="kv_ram",kind="checkpoint"} 4
ignis_requests_cancelled_total 6
"""


def found(**changes: Any) -> dict[str, Any]:
    record = {
        "plan_allocations": 0,
        "memory_growth_bytes": 0,
        "device_growth_bytes": 0,
        "errors": [],
        "activity": soak.activity(parse_metrics(METRICS)),
    }
    return record | changes


def test_activity_adds_up_labels() -> None:
    assert list(soak.activity(parse_metrics(METRICS)).values()) == [3, 3, 5, 4, 6]
    assert set(soak.activity({})) == set(soak.NEEDED)


def test_on_the_card_not_one_byte_may_be_added_and_something_must_have_moved() -> None:
    assert soak.failures(found(), 10, card=True) == []
    (grown,) = soak.failures(found(device_growth_bytes=2 << 20), 10, card=True)
    assert "2,097,152 bytes" in grown
    (unknown,) = soak.failures(found(device_growth_bytes=None), 10, card=True)
    assert "counts no bytes" in unknown
    assert soak.failures(found(device_growth_bytes=None), 10) == []
    idle = soak.failures(found(activity=dict.fromkeys(soak.NEEDED, 0)), 10, card=True)
    assert len(idle) == len(soak.NEEDED)


def test_host_memory_allocations_and_errors_fail_it_anywhere() -> None:
    changes = {"memory_growth_bytes": 11, "plan_allocations": 1, "errors": ["short: 500 x"]}
    assert len(soak.failures(found(**changes), 10)) == 3


def test_known_conversations_are_few_and_begin_alike() -> None:
    some = [soak.known_turns(random.Random(seed), 4) for seed in range(100)]
    assert len({str(turns) for turns in some}) == soak.CONVERSATIONS
    assert [turn["role"] for turn in some[0]] == ["user", "assistant"] * 2
