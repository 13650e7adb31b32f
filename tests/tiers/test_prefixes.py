"""Prompts that begin alike share what was computed, and are answered as if they did not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ignis.engine.api import Mark
from tests.tiers.serving import DENSE, HYBRID, Served, prompt, serving

SHARING = {
    "reuse__prompt": "on",
    "reuse__retained_host": "6",
    "vram__kv_pool_bytes": "2048tok",
    "model__lanes": "4",
}
HEAD = prompt(300)
TOKENS = 12


def marks(ids: list[int], *positions: int) -> tuple[Mark, ...]:
    """A prefix of whole pages, and the checkpoint before the last token."""
    shared = tuple(Mark(at, "prefix") for at in positions if at < len(ids) - 1)
    return (*shared, Mark(len(ids) - 1, "checkpoint")) if len(ids) > 1 else ()


async def one_by_one(folder: Path, model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The answers of a service that keeps nothing, in turn."""
    options = {"kv_disk__bytes": "0", "vram__kv_pool_bytes": "2048tok"}
    async with serving(folder, model, **options) as served:
        return [(await served.ask(ids, TOKENS)).ids for ids in prompts]


async def leave_after(served: Served, ids: list[int], seconds: float) -> None:
    """A client that goes away."""
    task = asyncio.create_task(served.ask(ids, 100, marks=marks(ids)))
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("model", [DENSE, HYBRID])
async def test_prompts_with_one_head_are_answered_as_without_reuse(
    model: Path, tmp_path: Path
) -> None:
    prompts = [[*HEAD, *prompt(1 + 7 * at, salt=100 + at)] for at in range(16)]
    expected = await one_by_one(tmp_path / "alone", model, prompts)
    async with serving(tmp_path, model, **SHARING) as served:
        answers = await asyncio.gather(
            *(served.ask(ids, TOKENS, marks=marks(ids, 256)) for ids in prompts)
        )
        assert [answer.ids for answer in answers] == expected
        assert sum(answer.cached_tokens >= 256 for answer in answers) >= 12


@pytest.mark.parametrize("model", [DENSE, HYBRID])
async def test_a_prompt_its_beginnings_and_its_variants(model: Path, tmp_path: Path) -> None:
    changed = [*HEAD[:-1], HEAD[-1] ^ 1]
    prompts = [HEAD, HEAD, HEAD[:-1], HEAD[:1], changed, HEAD[:64], HEAD[:65], HEAD]
    expected = await one_by_one(tmp_path / "alone", model, prompts)
    async with serving(tmp_path, model, **SHARING) as served:
        answers = [await served.ask(ids, TOKENS, marks=marks(ids)) for ids in prompts]
        assert [answer.ids for answer in answers] == expected
        assert all(
            answer.cached_tokens < len(ids) for answer, ids in zip(answers, prompts, strict=True)
        )
        assert answers[1].cached_tokens == len(HEAD) - 1
        assert answers[4].cached_tokens == len(HEAD) - 1, "only the last token differs"


async def test_identical_prompts_at_once_half_of_which_leave(tmp_path: Path) -> None:
    [expected] = await one_by_one(tmp_path / "alone", HYBRID, [HEAD])
    async with serving(tmp_path, HYBRID, **SHARING) as served:
        staying = [served.ask(HEAD, TOKENS, marks=marks(HEAD)) for _ in range(8)]
        leaving = [leave_after(served, HEAD, 0.002 * at) for at in range(8)]
        answers = await asyncio.gather(*staying, *leaving)
        stayed = [answer for answer in answers if answer is not None]
        assert [answer.ids for answer in stayed] == [expected] * 8
        assert sum(answer.cached_tokens == len(HEAD) - 1 for answer in stayed) >= 6
        await served.until(lambda stats: stats.running == stats.waiting == 0)
        retained = -(-(len(HEAD) - 1) // 64)
        held = served.engine.pages_total - served.engine.pages_free()
        assert held == retained, "the one checkpoint alone holds pages"
