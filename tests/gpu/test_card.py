"""The Rust tests that need a card: programs and ops against float64, the same bits in every way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ignis.plan.cuda import nvrtc_file

ROOT = Path(__file__).parents[2]
# Each with the variable that names its built binary, for a machine without Rust
# (`CARD_TESTS=path CARD_COPIES=path CARD_OPS=path make gpu`), and how many tests it has.
BINARIES = {
    "card": ("CARD_TESTS", 14),
    "copies": ("CARD_COPIES", 10),
    "ops": ("CARD_OPS", 17),
}

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("name", BINARIES)
def test_programs_ops_and_copies_on_the_card(name: str, tmp_path: Path) -> None:
    variable, count = BINARIES[name]
    if built := os.environ.get(variable):
        command = [built]
    else:
        assert shutil.which("cargo"), f"name a built test binary with {variable}, or install Rust"
        command = ["cargo", "test", "--release", "--quiet", "-p", "ignis-cuda", "--test", name]
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
    assert f"{count} passed" in run.stdout
