"""What `ignis doctor` says, with a card and without one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ignis._native import DeviceUnavailableError
from ignis.cli import doctor
from ignis.cli.main import main

REMEDY = 'NVRTC was not found; install it with: pip install "ignis[cuda]"'


def test_without_a_card_it_says_why_and_that_serving_is_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def find_card() -> None:
        raise DeviceUnavailableError(REMEDY)

    monkeypatch.setattr(doctor, "find_card", find_card)
    assert main(["doctor", "--kv-disk-path", str(tmp_path / "not" / "yet")]) == 0
    text = capsys.readouterr().out
    assert f"card     none that can be used: {REMEDY}\n" in text
    assert "serving  possible; device auto takes cpu\n" in text
    assert f"KV-disk  {tmp_path}/not/yet: reads and writes" in text
    assert not (tmp_path / "not").exists()


def test_a_card_is_named_with_what_drives_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = SimpleNamespace(
        name="A card", capability=(9, 0), driver=(13, 0), nvrtc=(12, 8), total_bytes=8 << 30
    )
    monkeypatch.setattr(doctor, "find_card", lambda: card)
    monkeypatch.setattr("ignis._native.free_bytes", lambda device: 4 << 30)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "card     A card, compute capability 9.0, 8.00 GiB, 4.00 GiB free\n" in text
    assert "driver   for CUDA 13.0\n" in text
    assert "NVRTC    12.8\n" in text
    assert "device auto takes cuda\n" in text


def test_loaded_libraries_are_those_of_the_card(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libcuda.so.580.1\n"
        "7f01-7f02 r--p 00000000 08:01 12 /usr/lib/libcuda.so.580.1\n"
        "7f02-7f03 r-xp 00000000 08:01 13 /usr/lib/libc.so.6\n"
        "7f03-7f04 rw-p 00000000 00:00 0\n"
    )
    assert doctor.loaded_libraries(maps) == ["/usr/lib/libcuda.so.580.1"]
