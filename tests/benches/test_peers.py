"""The comparison's own arithmetic, with programs that answer at once."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from benches.peers import __main__ as peers
from benches.peers.llama import PROGRAMS, Peer
from benches.peers.rows import ROWS, VARIANTS
from ignis.cli import rates

ANSWER = """#!/bin/sh
echo "$0 $*" >> "{log}"
case "$0" in
  *quantize) touch "$3" ;;
  *batched*) echo 'noise'; echo '{{"speed_tg": 160.5}}' ;;
  *) case "$*" in *"-fa on"*) rate=200 ;; *) rate=100 ;; esac; echo "[{{\\"avg_ts\\": $rate}}]" ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        script = folder / name
        script.write_text(ANSWER.format(log=tmp_path / "log"))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "libx.so.1.2").write_bytes(b"library")
    (folder / "_symlinks.json").write_text(
        json.dumps({"libx.so": "libx.so.1", "libx.so.1": "libx.so.1.2"})
    )
    return folder


@pytest.fixture
def peer(programs: Path, tmp_path: Path) -> Peer:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    found = Peer(programs, tmp_path / "work")
    found.prepare(model, ("Q4_1", "F16", "Q8_0"), threads=2)
    return found


def test_every_row_exists_on_our_side() -> None:
    assert [row.ours for row in ROWS] == [scenario.name for scenario in rates.SCENARIOS]


def test_libraries_are_found_under_every_name(peer: Peer, tmp_path: Path) -> None:
    for name in ("libx.so", "libx.so.1", "libx.so.1.2"):
        assert (tmp_path / "work/bin" / name).read_bytes() == b"library"


def test_each_format_is_made_once(peer: Peer, tmp_path: Path) -> None:
    peer.prepare(tmp_path / "model.gguf", ("Q4_1", "F16", "Q8_0"), threads=2)
    made = [line for line in (tmp_path / "log").read_text().splitlines() if "quantize" in line]
    assert len(made) == 2


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.ours)
def test_a_row_is_compared_with_the_peers_best(
    peer: Peer, row: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ours", lambda *_: 300.0)
    arguments = peers.argparse.Namespace(model="m", threads=2, repetitions=3, activations="int8")
    found = peers.compare(peer, row, arguments)  # type: ignore[arg-type]
    assert set(found["survey"]) == {str(variant) for variant in VARIANTS}
    if row.phase == "batch":  # type: ignore[attr-defined]
        assert found["ratio_of_medians"] == pytest.approx(300 / 160.5)
    else:
        assert "flash attention on" in found["peer_best"]
        assert found["ratio_of_medians"] == pytest.approx(1.5)
    assert all(len(samples) == 3 for samples in found["peer"].values())


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="llama-batched-bench"):
        Peer(tmp_path, tmp_path / "work")


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.record, "load_average", lambda: 8.0)
    monkeypatch.setattr("sys.argv", ["peers"])
    with pytest.raises(SystemExit, match=r"busy \(load 8.0\)"):
        peers.main()


def test_samples_far_apart_do_not_settle_a_row(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    drifting = iter([300.0, 100.0, 200.0])
    monkeypatch.setattr(peers, "ours", lambda *_: next(drifting))
    arguments = peers.argparse.Namespace(model="m", threads=2, repetitions=3, activations="int8")
    assert not peers.compare(peer, ROWS[0], arguments)["settled"]
    monkeypatch.setattr(peers, "ours", lambda *_: 300.0)
    assert peers.compare(peer, ROWS[0], arguments)["settled"]
