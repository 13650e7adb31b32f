"""What `/v1/models` tells of a plan."""

from __future__ import annotations

import json

from ignis.plan import device_to_plan
from ignis.server.loading import facts_of
from tests.unit.plan.test_plan import plan_of


def test_the_facts_name_the_device_and_no_path() -> None:
    facts = facts_of(plan_of(device=device_to_plan("h200")))
    assert facts["device"] == {"name": "h200", "kind": "cuda", "title": "NVIDIA H200"}
    assert "m.gguf" not in json.dumps(facts)
