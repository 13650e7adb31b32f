"""A parked file is damaged: the request ends with its reference tokens all the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiers.serving import FILE, HYBRID, alone, prompt, serving

AGENT, AGENT_TOKENS = prompt(380), 100
FIRST, FIRST_TOKENS = prompt(200, salt=1), 250
WINDOW = 1 << 20
WINDOWS = 31  # of a file of 32 MiB, see `disk_windows` in crates/tiers
FRAMES = 4096 * (1 + WINDOWS)


def frames(path: Path) -> bytearray:
    """Everything behind the table of headers."""
    return bytearray(path.read_bytes()[FRAMES:])


def write(path: Path, content: bytes, at: int = FRAMES) -> None:
    """In place, so that the server's open file is the one that changes."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def flip_a_bit_in_each_frame(path: Path) -> None:
    content = frames(path)
    draw = random.Random(1)
    for start in range(0, len(content), WINDOW):
        content[start + draw.randrange(4096)] ^= 1 << draw.randrange(8)
    write(path, content)


def swap_frames(path: Path) -> None:
    content = frames(path)
    halves = [bytes(content[at : at + WINDOW]) for at in range(0, len(content), WINDOW)]
    write(path, b"".join(reversed(halves)))


def zero_frames(path: Path) -> None:
    write(path, bytes(len(frames(path))))


def truncate_to_the_headers(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(FRAMES)


def truncate_to_nothing(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


DAMAGES = [
    flip_a_bit_in_each_frame,
    swap_frames,
    zero_frames,
    truncate_to_the_headers,
    truncate_to_nothing,
]


async def parked_run(folder: Path, harm: Callable[[Path], None]) -> tuple[list[int], int, int]:
    """The agent's ids, how often it started over, and the tokens that were computed again."""
    async with serving(folder) as served:
        agent = asyncio.create_task(served.ask(AGENT, AGENT_TOKENS, "agent"))
        await served.until(lambda stats: stats.running == 1 and stats.tokens > 0)
        first = asyncio.create_task(served.ask(FIRST, FIRST_TOKENS))
        await served.until(lambda stats: stats.parked == 1 and not stats.moving_out)
        harm(folder / FILE)
        in_front, behind = await first, await agent
        assert in_front.outcome == behind.outcome == "length"
        assert in_front.moves == 0
        assert behind.moves == 1
        assert served.is_idle()
        # The service is healthy: the next request is answered, and nothing is left behind.
        again = await served.ask(FIRST, 5)
        assert again.ids == in_front.ids[:5]
        assert served.engine.pages_free() == served.engine.pages_total
        return behind.ids, behind.prefilled_again, served.recorder.facts["prefilled_again"]


@pytest.mark.parametrize("harm", DAMAGES)
async def test_a_damaged_file_costs_time_and_no_token(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    expected = await alone(tmp_path / "alone", AGENT, AGENT_TOKENS, HYBRID)
    ids, restarts, computed_again = await parked_run(tmp_path, harm)
    assert ids == expected
    assert restarts == 1
    assert computed_again >= len(AGENT)


async def test_an_unlinked_file_is_still_read(tmp_path: Path) -> None:
    expected = await alone(tmp_path / "alone", AGENT, AGENT_TOKENS, HYBRID)
    ids, restarts, computed_again = await parked_run(tmp_path, lambda path: path.unlink())
    assert (ids, restarts, computed_again) == (expected, 0, 0)


async def test_an_unharmed_file_loses_nothing(tmp_path: Path) -> None:
    expected = await alone(tmp_path / "alone", AGENT, AGENT_TOKENS, HYBRID)
    ids, restarts, computed_again = await parked_run(tmp_path, lambda _: None)
    assert (ids, restarts, computed_again) == (expected, 0, 0)
