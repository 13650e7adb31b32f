"""What it takes to use a card: compilers that an environment holds, and kernels in the making."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import pytest

from ignis import _native
from ignis.config import load_config
from ignis.errors import EngineError, PlanError
from ignis.plan import Device, make_plan
from ignis.plan import cuda as cuda_module
from ignis.plan.core import native_errors
from ignis.plan.cuda import kernels_folder, nvrtc_files
from tests.unit.plan.fake_core import FakeCore

ROOT = Path(__file__).parents[3]
HERE = Device("cuda", "cuda", "A card")


def test_every_compiler_of_an_environment_is_named_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for base, place in (
        ("a", "cuda_nvrtc/lib/libnvrtc.so.12"),
        ("b", "cu13/lib/libnvrtc.so.13"),
        ("b", "cu13/lib/libnvrtc.alt.so.13"),
    ):
        file = tmp_path / base / "nvidia" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        files.append(str(file))
    monkeypatch.setattr("sys.path", ["", str(tmp_path / "a"), str(tmp_path / "b")])
    nvrtc_files.cache_clear()
    try:
        assert nvrtc_files() == (files[1], files[0])
    finally:
        nvrtc_files.cache_clear()


class OpeningCore(FakeCore):
    """Takes a while to open the card, and compiles meanwhile or finds everything compiled."""

    compiles = True

    def measured(self, path: str, device: str) -> tuple[tuple[str, int], ...]:
        if self.compiles:
            Counted.made += 3
        time.sleep(0.1)
        return super().measured(path, device)


class Counted:
    made = 0


@pytest.mark.parametrize("compiles", [True, False])
def test_a_first_start_says_that_it_compiles(
    compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_module, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(_native, "kernels_made", lambda: Counted.made)
    core = OpeningCore()
    core.compiles = compiles
    told: list[tuple[str, Path]] = []
    config = load_config({"reuse.kv_host_pool_bytes": "0"}, environ={})
    make_plan(config, "m", device=HERE, core=core, tell=lambda *what: told.append(what))
    assert told == ([("A card", kernels_folder())] if compiles else [])


@pytest.mark.parametrize(
    ("raised", "ours"),
    [(_native.DeviceFaultError, EngineError), (_native.MemoryRefusedError, PlanError)],
)
def test_what_a_card_raises_while_it_is_opened_is_one_of_ours(
    raised: type[Exception], ours: type[Exception]
) -> None:
    with pytest.raises(ours, match=r"^the driver said no$"), native_errors():
        raise raised("the driver said no")


def test_every_extra_that_is_named_is_one_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(extras["optional-dependencies"])
    places = ["README.md", "docs/GPU.md"]
    named = {
        name
        for place in places
        for name in re.findall(r"(?:ignis|'\.)\[(\w+)\]", (ROOT / place).read_text())
    }
    assert named == known
