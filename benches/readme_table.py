"""Writes the README's tables from what was recorded, so that they cannot differ.

`python -m benches.readme_table` takes the newest `peers*.json` of benches/results and the card
suite of an H200, `card-h200.json`; a test checks that it was run.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from benches.record import RESULTS, ROOT

README = ROOT / "README.md"
PLACES = {
    name: re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- {name} end -->)", re.DOTALL)
    for name in ("peers", "card")
}
CARD_ROWS = {
    "decode-1": "one client",
    "decode-8": "eight clients together",
    "prefill": "a prompt of 2,048 tokens",
}
NONE = "No run has been recorded yet.\n"


def table(results: Path = RESULTS) -> str:
    """The newest recorded comparison as a table with its conditions."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("peers*.json")]
    if not runs:
        return NONE
    return _table(max(runs, key=lambda run: str(run["conditions"]["date"])))


def _table(run: dict[str, Any]) -> str:
    found = run["conditions"]
    text = f"| tokens a second, {run['threads']} threads | ignis | peer's best | ratio |\n"
    text += "|---|---:|---:|---:|\n"
    for row in run["rows"]:
        mine = statistics.median(row["ours"])
        theirs = statistics.median(row["peer"][row["peer_best"]])
        cells = f"{mine:.0f} | {theirs:.0f} ({row['peer_best'].split(',')[0]})"
        if not row["settled"]:
            continue
        text += f"| {row['why']} (`{row['row']}`) | {cells} | {row['ratio_of_medians']:.2f} |\n"
    text += f"\n{run['model']}, {found['cpu']} ({found['cpu_flags']}), {run['peer']}, medians of "
    text += f"{run['repetitions']} runs in turn, commit {found['commit']}, {found['date']}:\n"
    return text + f"`{found['command']}`\n"


def card_table(results: Path = RESULTS) -> str:
    """Rates on the card by format, beside transformers in the same run, with their conditions."""
    path = results / "card-h200.json"
    return _card_table(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NONE


def _card_table(run: dict[str, Any]) -> str:
    rates = {
        (model["geometry"], model["format"], row): found["value"]
        for model in run["models"]
        for row, found in model.get("rows", {}).items()
    }
    formats = list(dict.fromkeys(matrices for _, matrices, row in rates if row in CARD_ROWS))
    text = f"| tokens a second | {' | '.join(formats)} | transformers, bf16 |\n"
    text += "|---|" + "---:|" * (len(formats) + 1) + "\n"
    for peer in run["peers"]:
        name = peer["geometry"]
        for row, what in CARD_ROWS.items():
            cells = [rates.get((name, matrices, row)) for matrices in formats]
            cells.append(peer["rows"][row]["value"])
            written = " | ".join("" if rate is None else f"{rate:,.0f}" for rate in cells)
            text += f"| {name}, {what} | {written} |\n"
    found = run["conditions"]
    text += f"\nRandom weights, {found['card']}, driver {found['driver']}, "
    text += f"commit {found['commit']}, {found['date']}: `{found['command']}`\n"
    return text


def written(readme: str, results: Path = RESULTS) -> str:
    """The README with each table in its place."""
    for name, content in (("peers", table(results)), ("card", card_table(results))):
        if place := PLACES[name].search(readme):
            readme = readme[: place.start(2)] + content + readme[place.end(2) :]
    return readme


def main() -> int:
    """Rewrites the README."""
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
