"""What KV-disk keeps of prompts is found by the next process, or refused and removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ignis.engine.api import Mark
from ignis.errors import EngineError
from tests.tiers.serving import DENSE, FILE, HYBRID, Served, alone, prompt, serving
from tests.tiers.test_damage import flip_a_bit_in_each_frame

KEPT = 300
FIRST_TURN = prompt(KEPT + 1)
SECOND_TURN = [*FIRST_TURN, *prompt(60, salt=3)]
MARKS = (Mark(KEPT, "checkpoint"),)
REUSE = {"reuse__prompt": "on", "reuse__retained_host": "2", "vram__kv_pool_bytes": "1024tok"}


async def keep(served: Served) -> None:
    """Ask the first turn, and wait until its checkpoint lies on KV-disk."""
    await served.ask(FIRST_TURN, 4, marks=MARKS)
    async with asyncio.timeout(10):
        while not served.recorder.facts["retained_spill"]:
            await asyncio.sleep(0.01)


async def test_the_next_process_starts_from_the_checkpoint(tmp_path: Path) -> None:
    expected = await alone(tmp_path / "alone", SECOND_TURN, 20)
    async with serving(tmp_path, **REUSE) as served:
        await keep(served)
    async with serving(tmp_path, **REUSE) as served:
        answer = await served.ask(SECOND_TURN, 20)
        assert (answer.cached_tokens, answer.source) == (KEPT, "disk")
        assert answer.ids == expected
        assert served.recorder.facts["retained_hit"] == 1


async def test_damage_between_two_processes_is_noticed(tmp_path: Path) -> None:
    expected = await alone(tmp_path / "alone", SECOND_TURN, 20)
    async with serving(tmp_path, **REUSE) as served:
        await keep(served)
    flip_a_bit_in_each_frame(tmp_path / FILE)
    async with serving(tmp_path, **REUSE) as served:
        answer = await served.ask(SECOND_TURN, 20)
        assert answer.cached_tokens == 0
        assert answer.ids == expected
        assert served.is_idle()


@pytest.mark.parametrize(
    ("model", "options"),
    [(DENSE, {}), (HYBRID, {"model__kv_format": "f32"}), (HYBRID, {"cpu__activations": "f32"})],
)
async def test_state_of_another_model_format_or_arithmetic_is_removed(
    model: Path, options: dict[str, str], tmp_path: Path
) -> None:
    async with serving(tmp_path, **REUSE) as served:
        await keep(served)
    async with serving(tmp_path, model, **REUSE, **options) as served:
        removed, _, _, _ = served.engine.disk_state()
        assert removed == 1
        answer = await served.ask(SECOND_TURN, 20)
        assert answer.cached_tokens == 0
    async with serving(tmp_path, **REUSE) as served:
        assert (await served.ask(SECOND_TURN, 20)).cached_tokens == 0


async def test_a_second_process_is_refused_the_file(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(EngineError, match=r"kv-disk\.ignis is used by another process"):
            async with serving(tmp_path):
                pass


async def test_the_folder_holds_one_file_of_the_planned_size(tmp_path: Path) -> None:
    async with serving(tmp_path, **REUSE) as served:
        await keep(served)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_size == 32 * 2**20
