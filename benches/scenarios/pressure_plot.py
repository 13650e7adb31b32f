"""The picture of a pressure run: pool, KV-RAM, KV-disk and tokens over time, a column a setup."""

from __future__ import annotations

from pathlib import Path

from benches.scenarios.model import Run

STEP_SECONDS = 0.25


def plot(runs: dict[str, Run], path: Path) -> None:
    """Draw the rounds of each run, four axes one above the other."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        4,
        len(runs),
        sharex="col",
        sharey="row",
        squeeze=False,
        figsize=(5 * len(runs), 9),
    )
    for column, (name, run) in enumerate(runs.items()):
        pool, ram, disk, tokens = axes[:, column]
        times = [at for at, _ in run.recorder.rounds]
        stats = [one for _, one in run.recorder.rounds]
        total = run.pages_total
        pool.plot(times, [total - one.pages_free for one in stats], drawstyle="steps-post")
        pool.axhline(total, linestyle="--", color="grey")
        ram.plot(times, [one.kv_ram_windows_used for one in stats], drawstyle="steps-post")
        disk.plot(times, [one.kv_disk_windows_used for one in stats], drawstyle="steps-post")
        at, rate = rates(times, [one.tokens for one in stats])
        tokens.plot(at, rate, drawstyle="steps-post", label="tokens a second")
        tokens.plot(times, [one.parked for one in stats], drawstyle="steps-post", label="parked")
        pool.set_title(name)
        tokens.set_xlabel("seconds")
    for row, label in zip(
        axes, ("pages used", "KV-RAM, windows", "KV-disk, windows", ""), strict=True
    ):
        row[0].set_ylabel(label)
        for one in row:
            one.grid(alpha=0.3)
    axes[3][0].legend(loc="upper right", fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def rates(times: list[float], tokens: list[int]) -> tuple[list[float], list[float]]:
    """Tokens a second, over steps of a quarter of a second."""
    at, rate, begun, count = [], [], 0.0, 0
    for now, more in zip(times, tokens, strict=True):
        count += more
        if now - begun >= STEP_SECONDS:
            at.append(now)
            rate.append(count / (now - begun))
            begun, count = now, 0
    return at, rate
