"""On a card: what gives way for another request goes on where it stopped, with the same tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.tiers.serving import DENSE, prompt, serving

AGENT, AGENT_TOKENS = prompt(380), 100
FIRST, FIRST_TOKENS = prompt(200, salt=1), 250

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TIERS = {
    "ram": {"kv_disk__bytes": "0", "reuse__kv_host_pool_bytes": "64M"},
    "disk": {},
}


@pytest.mark.parametrize("tier", TIERS)
async def test_a_parked_request_goes_on_with_the_same_tokens(tier: str, tmp_path: Path) -> None:
    plain = {"device": "cuda", "kv_disk__bytes": "0", "vram__kv_pool_bytes": "1024tok"}
    async with serving(tmp_path / "alone", DENSE, **plain) as served:
        agent_alone = await served.ask(AGENT, AGENT_TOKENS)
        first_alone = await served.ask(FIRST, FIRST_TOKENS)
    async with serving(tmp_path, DENSE, device="cuda", **TIERS[tier]) as served:
        agent = asyncio.create_task(served.ask(AGENT, AGENT_TOKENS, "agent"))
        await served.until(lambda stats: stats.running == 1 and stats.tokens > 0)
        in_front = await served.ask(FIRST, FIRST_TOKENS)
        behind = await agent
        assert (in_front.moves, behind.moves, behind.prefilled_again) == (0, 1, 0)
        assert in_front.ids == first_alone.ids
        assert behind.ids == agent_alone.ids
        assert served.is_idle()
        assert served.engine.pages_free() == served.engine.pages_total
