"""Writes the README's table from the recorded comparison, so that they cannot differ.

`python -m benches.readme_table` takes the newest `peers*.json` of benches/results; a test checks
that it was run.
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
PLACE = re.compile(r"(<!-- peers: [^\n]*-->\n)(.*?)(<!-- peers end -->)", re.DOTALL)
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


def written(readme: str, results: Path = RESULTS) -> str:
    """The README with the table in its place."""
    content = table(results)
    return PLACE.sub(lambda place: place[1] + content + place[3], readme)


def main() -> int:
    """Rewrites the README."""
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
