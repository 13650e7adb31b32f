"""What every test may ask for, and which tests a machine can run.

- `model` tests need the default model's file; where it is missing they fail and say how to get it.
- `gpu` tests are deselected where there is no GPU, so that a skipped test never looks like a pass.
- A test that sets an environment variable does so through `monkeypatch`; those of this shell that
  ignis would read are removed first.
"""

from __future__ import annotations

import os
import shutil

import pytest


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers; a toolkit without a card does not count."""
    return shutil.which("nvidia-smi") is not None and os.path.exists("/dev/nvidiactl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files again from what the code gives now",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if has_gpu():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(autouse=True)
def _no_ignis_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in list(os.environ):
        if key.startswith("IGNIS_"):
            monkeypatch.delenv(key)


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(pytestconfig.getoption("--update-golden"))
