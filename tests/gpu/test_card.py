"""The Rust tests that need a card: every format against float64, the same bits in every way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ignis.plan.cuda import nvrtc_file

ROOT = Path(__file__).parents[2]
# A built test binary, for a machine without Rust: `CARD_TESTS=path make gpu`.
CARD_TESTS = os.environ.get("CARD_TESTS")

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_programs_and_samples_on_the_card(tmp_path: Path) -> None:
    if CARD_TESTS:
        command = [CARD_TESTS]
    else:
        assert shutil.which("cargo"), "name a built test binary with CARD_TESTS, or install Rust"
        command = ["cargo", "test", "--release", "--quiet", "-p", "ignis-cuda", "--test", "card"]
        command.append("--")
    environment = dict(os.environ, CARD_KERNELS=str(tmp_path))
    if nvrtc := nvrtc_file():
        environment["CARD_NVRTC"] = nvrtc
    run = subprocess.run(
        [*command, "--ignored", "--test-threads=1", "--nocapture"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    print(run.stdout[-4000:])
    assert run.returncode == 0, run.stdout + run.stderr
    assert "6 passed" in run.stdout
