"""Seconds from the start of `ignis serve` to its readiness: `python -m benches.card.ready NAME`.

The weights lie in a folder of `--folder`, by default in memory (/dev/shm): bf16, random, written
before the clock starts, and so in the page cache. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benches.card import checkpoint

READY_SECONDS = 180
POLL_SECONDS = 0.02


def folder_for(size: int) -> Path:
    """Where so many bytes have room: memory if it can, else the folder for temporary files."""
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > size * 1.05:
            return folder
    raise SystemExit(f"bench: no folder has {size / 1e9:.0f} GB free; name one with --folder")


def get(url: str) -> str | None:
    """The body of a route that answers 200, else None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode()) if response.status == 200 else None
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def start(folder: Path, device: str, more: list[str]) -> dict[str, Any]:
    """Serves the checkpoint once; seconds to the first answers of /health and /ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ignis", "serve", "--model", str(folder)]
    command += ["--device", device, "--server-bind", f"127.0.0.1:{port}", "--kv-disk-bytes", "0"]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {}
    try:
        while time.perf_counter() - began < READY_SECONDS:
            for route in ("health", "ready"):
                if route not in found and get(f"http://127.0.0.1:{port}/{route}") is not None:
                    found[route] = time.perf_counter() - began
            if "ready" in found:
                return found
            if process.poll() is not None:
                raise SystemExit(f"bench: the server ended with status {process.returncode}")
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"bench: the server was not ready after {READY_SECONDS} s")
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def measure(name: str, folder: Path | None, device: str, more: list[str]) -> dict[str, Any]:
    """Two starts, the second of which finds its kernels compiled."""
    size = 2 * sum(_count(dims) for _, dims in checkpoint.tensors(checkpoint.geometry(name)))
    with tempfile.TemporaryDirectory(dir=folder or folder_for(size)) as made:
        began = time.perf_counter()
        path = Path(made) / name
        size = checkpoint.write(path, name)
        written = time.perf_counter() - began
        starts = [start(path, device, more) for _ in range(2)]
    return {
        "geometry": name,
        "rows": {
            "ready": {
                "value": starts[-1]["ready"],
                "answering_s": starts[-1]["health"],
                "first_start_s": starts[0]["ready"],
                "bytes": size,
                "written_s": written,
            }
        },
    }


def _count(dims: tuple[int, ...]) -> int:
    values = 1
    for dim in dims:
        values *= dim
    return values


def main() -> int:
    """Measures one geometry."""
    parser = argparse.ArgumentParser(prog="python -m benches.card.ready", description=__doc__)
    parser.add_argument("geometry")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--serve-args", default="", help='further flags, as in "--model-lanes 8"')
    args = parser.parse_args()
    print(json.dumps(measure(args.geometry, args.folder, args.device, args.serve_args.split())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
