"""What `ignis doctor` says: everything it found, and why no card can be used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ignis import _native
from ignis.cli import doctor
from ignis.cli.main import main
from ignis.plan.cuda import find_facts

REMEDY = 'NVRTC was not found; install it with: pip install "ignis[cuda]"'
CARD: dict[str, Any] = {
    "driver": (13, 0),
    "driver_problem": None,
    "release": "580.159.04",
    "cards": 1,
    "name": "A card",
    "capability": (9, 0),
    "mode": "shared",
    "total_bytes": 8 << 30,
    "free_bytes": 4 << 30,
    "others": [],
    "nvrtc": (12, 8),
    "nvrtc_file": Path("/env/libnvrtc.so.12"),
    "nvrtc_found": [((12, 8), Path("/env/libnvrtc.so.12"))],
    "nvrtc_broken": [],
    "refusal": None,
}
NOTHING = dict.fromkeys(CARD) | {
    "driver_problem": "not found",
    "cards": 0,
    "others": [],
    "nvrtc_found": [],
    "nvrtc_broken": [],
    "refusal": REMEDY,
}


def found(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    monkeypatch.setattr(doctor, "find_facts", lambda: SimpleNamespace(**facts))


def test_without_a_card_it_says_why_and_that_serving_is_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found(monkeypatch, NOTHING)
    assert main(["doctor", "--kv-disk-path", str(tmp_path / "not" / "yet")]) == 0
    text = capsys.readouterr().out
    assert "driver   not found\n" in text
    assert "card     none\n" in text
    assert "NVRTC    not found\n" in text
    assert f"problem  no card can be used: {REMEDY}\n" in text
    assert "serving  possible; device auto takes cpu\n" in text
    assert f"KV-disk  {tmp_path}/not/yet: reads and writes" in text
    assert not (tmp_path / "not").exists()


def test_a_card_is_named_with_what_drives_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, CARD)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "driver   580.159.04, for CUDA 13.0\n" in text
    assert "card     A card, compute capability 9.0, 8.00 GiB, 4.00 GiB free\n" in text
    assert "NVRTC    12.8, /env/libnvrtc.so.12\n" in text
    assert "problem" not in text
    assert "device auto takes cuda\n" in text


def test_what_is_in_the_way_stands_beside_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [(7, 3 << 30, "/usr/bin/trainer"), (8, 1 << 20, ""), (9, None, "/usr/lib/Xorg")]
    refusal = "A card is set to serve one process"
    changed = {"mode": "exclusive", "others": others, "cards": 2, "refusal": refusal}
    old, broken = Path("/usr/lib/libnvrtc.so.12"), Path("/env/libnvrtc.so.13")
    changed |= {"nvrtc_found": [*CARD["nvrtc_found"], ((12, 4), old)], "nvrtc_broken": [broken]}
    found(monkeypatch, CARD | changed)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "4.00 GiB free; the first of 2\n" in text
    assert "mode     exclusive (nvidia-smi -c)\n" in text
    assert "in use   process 7, 3.00 GiB /usr/bin/trainer\n" in text
    assert "in use   process 8, 1.00 MiB\n" in text
    assert "in use   process 9, memory unknown /usr/lib/Xorg\n" in text
    assert f"NVRTC    12.4, {old}: not used\n" in text
    assert f"NVRTC    {broken} cannot be loaded\n" in text
    assert f"problem  no card can be used: {refusal}\n" in text
    assert "device auto takes cpu\n" in text


def test_facts_and_refusal_agree_on_this_machine() -> None:
    facts = find_facts()
    if facts.refusal is None:
        assert doctor.card_rows(facts)
        return
    options = _native.DeviceOptions("cuda")
    with pytest.raises(_native.DeviceUnavailableError):
        options.check_cuda()
    assert "; " in facts.refusal


def test_loaded_libraries_are_those_of_the_card(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libcuda.so.580.1\n"
        "7f01-7f02 r--p 00000000 08:01 12 /usr/lib/libcuda.so.580.1\n"
        "7f02-7f03 r-xp 00000000 08:01 13 /usr/lib/libc.so.6\n"
        "7f03-7f04 rw-p 00000000 00:00 0\n"
    )
    assert doctor.loaded_libraries(maps) == ["/usr/lib/libcuda.so.580.1"]
