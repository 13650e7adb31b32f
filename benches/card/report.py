"""The suite's table: each row beside its ceiling, its peer and its goal."""

from __future__ import annotations

from typing import Any

from benches import record
from benches.card.profiles import Goal, Profile
from benches.card.rows import ROWS

Line = dict[str, Any]


def parts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every part that ran."""
    ceilings = [found["ceilings"]] if found["ceilings"] else []
    return [*ceilings, *found["models"], *found["peers"]]


def failures(found: dict[str, Any]) -> list[str]:
    """What did not run, and why."""
    return [f"{part['part']}: {part['failed']}" for part in parts(found) if "failed" in part]


def lines(profile: Profile, found: dict[str, Any]) -> list[Line]:
    """One line for each measured row, in the order of the models."""
    ceilings = found["ceilings"] if "failed" not in found["ceilings"] else {}
    peers = {peer["geometry"]: peer["rows"] for peer in found["peers"] if "failed" not in peer}
    table = []
    for model in found["models"]:
        rows = model.get("rows", {})
        for name in (name for name in ROWS if name in rows):
            line: Line = {
                "geometry": model["geometry"],
                "format": model["format"],
                "row": name,
                "unit": ROWS[name].unit,
                "value": rows[name]["value"],
            }
            line["ceiling"] = ceiling(name, rows[name], ceilings, model["geometry"])
            line["peer"] = peers.get(model["geometry"], {}).get(name, {}).get("value")
            other = rows.get(ROWS[name].of, {}).get("value")
            line["of_row"] = _over(rows[name]["value"], other)
            line["goal"], line["met"] = judge(goal_of(profile, name, model["format"]), line)
            table.append(line)
    return table


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def ceiling(
    row: str, measured: dict[str, Any], ceilings: dict[str, Any], name: str
) -> float | None:
    """What the row would give at the measured rate of memory, of products, or of pinned copies."""
    if not ceilings:
        return None
    if row.startswith("decode"):
        lanes = round(measured["value"] * measured["ms"] / 1e3)
        rate: float = lanes * ceilings["read"] / measured["read_bytes"]
        return rate
    if row.startswith("prefill"):
        tokens = measured["value"] * measured["ms"] / 1e3
        products = ceilings["gemm"].get(name)
        return tokens / products["seconds"] if products else None
    if row.startswith("move"):
        copied: float = ceilings["pinned"][row.removeprefix("move-")] / 1e9
        return copied
    return None


def goal_of(profile: Profile, row: str, matrices: str) -> Goal | None:
    """The goal of a row in a format, or in any."""
    return profile.goals.get((row, matrices)) or profile.goals.get((row, ""))


def judge(goal: Goal | None, line: Line) -> tuple[str, bool | None]:
    """The goal in words, and whether it is reached; None where that cannot be said."""
    if goal is None:
        return "", None
    value = line["value"]
    if value is None:
        return goal.text(), None
    if goal.measure == "value":
        return goal.text(), value >= goal.reach
    if goal.measure == "at_most":
        return goal.text(), abs(value) <= goal.reach
    if goal.measure == "start":
        return goal.text(), None if line["of_row"] is None else line["of_row"] >= goal.reach
    bound = line["ceiling"]
    return goal.text(), None if not bound else value / bound >= goal.reach


def markdown(profile: Profile, found: dict[str, Any]) -> str:
    """The report for people."""
    facts = found["conditions"]
    major, minor = facts["capability"]
    text = f"# The CUDA device on an {profile.title}\n\n"
    text += f"- card: {facts['card']} (compute capability {major}.{minor}), driver "
    text += f"{facts['driver']} (CUDA {_version(facts['driver_cuda'])}), NVRTC "
    text += f"{_version(facts['nvrtc'])}\n"
    text += record.conditions_markdown(facts)
    text += f"- duration: {found['took_s']:.0f} s\n\n"
    text += "Random weights of real geometries. Shares are of ceilings and of transformers in the "
    text += "same run: decode of reading its weights, keys and values once, prefill of its "
    text += "products in bf16 without attention, moves of a copy from or to pinned memory.\n\n"
    text += "| geometry | format | row | measured | unit | of ceiling | of transformers | "
    text += "of a row | reach | met |\n|---|---|---|---:|---|---:|---:|---|---|---|\n"
    for line in found["table"]:
        shares = [
            _share(line["value"], line["ceiling"]),
            _share(line["value"], line["peer"]),
            "" if line["of_row"] is None else f"{line['of_row']:.0%} of {ROWS[line['row']].of}",
        ]
        met = {True: "yes", False: "no", None: ""}[line["met"]]
        if line["goal"] and line["value"] is None:
            met = "unknown"
        text += f"| {line['geometry']} | {line['format']} | {line['row']} | "
        text += f"{_number(line['value'])} | {line['unit']} | {' | '.join(shares)} | "
        text += f"{line['goal']} | {met} |\n"
    text += "\n" + _ceilings_markdown(profile, found["ceilings"])
    text += _peers_markdown(found["peers"])
    for quoted in profile.recorded:
        text += f"- recorded elsewhere on such a card, not in this run: {quoted}\n"
    for failed in failures(found):
        text += f"- not measured: {failed}\n"
    return text + "\n" + "".join(f"- {row.name}: {row.why}\n" for row in ROWS.values())


def _ceilings_markdown(profile: Profile, ceilings: dict[str, Any]) -> str:
    if not ceilings or "failed" in ceilings:
        return ""
    by, pinned = ceilings["read_by"], ceilings["pinned"]
    text = f"- memory: copy {ceilings['copy'] / 1e12:.2f} TB/s (read and written), read "
    text += f"{by['sum'] / 1e12:.2f} by a sum, {by['matrix_vector'] / 1e12:.2f} by a matrix-vector "
    text += f"product; datasheet {profile.read_tb_s:g}\n"
    for name, products in ceilings["gemm"].items():
        text += f"- products of {name}, 2,048 rows: {products['tflops']:.0f} TFLOP/s, "
        text += f"{products['seconds'] * 1e3:.1f} ms; datasheet {profile.gemm_tflops:g}\n"
    text += f"- pinned copies: {pinned['in'] / 1e9:.1f} GB/s in, {pinned['out'] / 1e9:.1f} out; "
    return text + f"torch {ceilings['torch']}\n"


def _peers_markdown(peers: list[dict[str, Any]]) -> str:
    text = ""
    for peer in peers:
        if "failed" in peer:
            continue
        rows = peer["rows"]
        text += f"- {peer['geometry']} in {peer['version']}: "
        text += ", ".join(f"{name} {_number(row['value'])} tok/s" for name, row in rows.items())
        hows = dict.fromkeys(row["how"] for row in rows.values() if "how" in row)
        text += f"; decode as {', '.join(hows)}; no torch.compile\n" if hows else "\n"
    return text


def _share(value: float | None, of: float | None) -> str:
    return f"{value / of:.0%}" if value is not None and of else ""


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _version(pair: list[int]) -> str:
    return ".".join(map(str, pair))
