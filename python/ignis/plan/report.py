"""A plan or a refusal as data and as tables; `ignis plan` and the start of a server print it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ignis.config import OPTIONS
from ignis.config.kinds import Size
from ignis.errors import PlanRefused, Suggestion
from ignis.plan.cuda import Tell
from ignis.plan.disk import DiskPlan
from ignis.plan.lines import KV_POOL
from ignis.plan.plan import Plan
from ignis.plan.units import exact, human


def plan_as_dict(plan: Plan) -> dict[str, object]:
    """A plan for `--json`: bytes, tokens and pages, all whole numbers."""
    return {
        "fits": not plan.oversubscribed,
        "model": {
            "path": plan.model.path,
            "name": plan.model.name,
            "architecture": plan.model.architecture,
            "format": plan.model.format,
            "quantisation": plan.model.quantisation,
            "parameters": plan.model.parameters,
            "context_trained": plan.model.context_trained,
        },
        "device": {"name": plan.device.name, "kind": plan.device.kind, "title": plan.device.title},
        "device_reason": plan.device.why,
        "mode": plan.mode,
        "free_at_start_bytes": plan.free_at_start_bytes,
        "headroom_bytes": plan.headroom_bytes if plan.mode == "derived" else None,
        "budget_bytes": plan.budget_bytes,
        "lines": [
            {
                "name": line.name,
                "bytes": line.bytes,
                "estimated": line.estimated,
                "assumed": line.estimated and plan.device.assumed,
            }
            for line in plan.lines
        ],
        "total_bytes": plan.total_bytes,
        "spare_bytes": plan.spare_bytes,
        "kv_pool": {
            "policy": plan.kv_pool_policy,
            "pages": plan.pages,
            "tokens": plan.pool_tokens,
            "bytes": plan.kv_pool_bytes,
            "page_bytes": plan.kv_page_bytes,
            "page_tokens": plan.page_tokens,
            "floor_pages": plan.floor_pages,
        },
        "retained_slots": {
            "device": plan.retained_device_slots,
            "host": plan.retained_host_slots,
        },
        "image": {"window_bytes": plan.window_bytes, "windows_max": plan.image_windows},
        "host": {
            "lines": [{"name": line.name, "bytes": line.bytes} for line in plan.host.lines],
            "total_bytes": plan.host.total_bytes,
            "pinned_bytes": plan.host.pinned_bytes,
            "available_bytes": plan.host.available_bytes,
            "margin_bytes": plan.host.margin_bytes,
            "notes": list(plan.host.notes),
        },
        "disk": _disk_as_dict(plan.disk),
        "max_context": plan.context_tokens,
        "lanes": plan.lanes,
        "prefill_chunk": plan.chunk_tokens,
        "threads": plan.threads,
        "kv_format": plan.kv_format,
        "adapted": [step.as_dict() for step in plan.adapted],
        "oversubscribed": list(plan.oversubscribed),
    }


def _disk_as_dict(disk: DiskPlan | None) -> dict[str, object] | None:
    if disk is None:
        return None
    return {
        "folder": str(disk.folder),
        "bytes": disk.bytes,
        "windows": disk.windows,
        "available_bytes": disk.available_bytes,
        "margin_bytes": disk.margin_bytes,
        "notes": list(disk.notes),
    }


def refusal_as_dict(refusal: PlanRefused) -> dict[str, object]:
    """A refusal for `--json`."""

    def listed(suggestions: tuple[Suggestion, ...]) -> list[dict[str, object]]:
        return [
            {
                "option": one.option,
                "flag": OPTIONS[one.option].flag,
                "current": one.current,
                "fits": one.fits,
                "saves_bytes": one.saves_bytes,
            }
            for one in suggestions
        ]

    return {
        "fits": False,
        "plan": refusal.plan,
        "message": refusal.message,
        "needed_bytes": refusal.needed_bytes,
        "budget_bytes": refusal.budget_bytes,
        "planned_bytes": refusal.planned_bytes,
        "shortfall_bytes": refusal.shortfall_bytes,
        "suggestions": listed(refusal.suggestions),
        "together": listed(refusal.together),
        "adapted": list(refusal.adapted),
    }


def tell_of_kernels(console: Console) -> Tell:
    """What says on `console` that kernels are being compiled."""

    def tell(title: str, folder: Path) -> None:
        sentence = f"Compiling kernels for {title}, once; they are kept in {folder}."
        console.print(escape(sentence), style="dim", highlight=False, soft_wrap=True)

    return tell


def print_plan(plan: Plan, console: Console) -> None:
    """The tables of a plan: the device's, the host's and the disk's, and what they hold."""
    model = plan.model
    title = f"{model.name or model.path} ({model.architecture}, {model.quantisation})"
    console.print(
        f"[bold]{escape(title)}[/] on {escape(plan.device.title)}", highlight=False, soft_wrap=True
    )
    if plan.device.why:
        reason = escape(f"The CPU, as no card can be used: {plan.device.why}.")
        console.print(reason, style="dim", highlight=False, soft_wrap=True)
    console.print(_budget_sentence(plan), highlight=False, soft_wrap=True)

    table = _table("line", "bytes", "", "what it is for")
    for line in plan.lines:
        how = "assumed" if plan.device.assumed else "estimated"
        mark = f" ({how})" if line.estimated else ""
        if line.bytes or line.name == KV_POOL:
            table.add_row(line.name, f"{line.bytes:,}", human(line.bytes), line.purpose + mark)
    table.add_section()
    table.add_row("total", f"{plan.total_bytes:,}", human(plan.total_bytes), "reserved at load")
    table.add_row("budget", f"{plan.budget_bytes:,}", human(plan.budget_bytes), "")
    table.add_row("unused", f"{plan.spare_bytes:,}", human(plan.spare_bytes), _unused_reason(plan))
    console.print(table)

    empty = [line.name for line in plan.lines if not line.bytes and line.name != KV_POOL]
    if empty:
        console.print(f"Nothing for {', '.join(empty)}.", highlight=False, soft_wrap=True)
    if plan.device.assumed:
        console.print(
            f"What is assumed was never measured on a card such as {escape(plan.device.title)}; a "
            "load measures it.",
            highlight=False,
            soft_wrap=True,
        )
    for sentence in _counts(plan):
        console.print(sentence, highlight=False, soft_wrap=True)
    _print_host(plan, console)
    if plan.disk is not None:
        _print_disk(plan.disk, console)
    for step in plan.adapted:
        console.print(
            f"[yellow]Lowered[/] {step.option} from {_value(step.option, step.before)} to "
            f"{_value(step.option, step.after)}: "
            f"{escape(step.reason)}.",
            highlight=False,
            soft_wrap=True,
        )
    for reason in plan.oversubscribed:
        console.print(f"[red]Oversubscribed:[/] {escape(reason)}.", highlight=False, soft_wrap=True)


def _print_host(plan: Plan, console: Console) -> None:
    """The host's table; one sentence where nothing is reserved beside the device's lines."""
    host = plan.host
    if not host.total_bytes:
        console.print("Nothing in host memory beside the device's lines.", highlight=False)
        return
    console.print()
    if host.shared:
        console.print(
            f"Host memory, beside the device's lines and out of the same "
            f"{human(host.available_bytes)}:",
            highlight=False,
            soft_wrap=True,
        )
    else:
        console.print(
            f"Host memory: {human(host.available_bytes)} available, of which "
            f"{human(host.margin_bytes)} stay free. All of it is pinned:",
            highlight=False,
            soft_wrap=True,
        )
    table = _table("line", "bytes", "", "what it is for")
    for line in host.lines:
        if line.bytes:
            table.add_row(line.name, f"{line.bytes:,}", human(line.bytes), line.purpose)
    table.add_section()
    table.add_row("total", f"{host.total_bytes:,}", human(host.total_bytes), "reserved at load")
    console.print(table)
    if plan.kv_ram_bytes:
        console.print(
            f"KV-RAM: {plan.kv_ram_bytes // plan.window_bytes:,} windows of "
            f"{human(plan.window_bytes)}; the longest sequence takes {plan.image_windows:,}.",
            highlight=False,
            soft_wrap=True,
        )
    _print_notes(host.notes, console)


def _print_disk(disk: DiskPlan, console: Console) -> None:
    """The disk's table."""
    console.print()
    console.print(f"KV-disk in {escape(str(disk.folder))}:", highlight=False, soft_wrap=True)
    table = _table("line", "bytes", "", "what it is for")
    table.add_row("kv_disk", f"{disk.bytes:,}", human(disk.bytes), f"{disk.windows:,} windows")
    table.add_section()
    table.add_row(
        "available", f"{disk.available_bytes:,}", human(disk.available_bytes), "on the volume"
    )
    table.add_row("left", f"{disk.left_bytes:,}", human(disk.left_bytes), _margin_reason(disk))
    console.print(table)
    _print_notes(disk.notes, console)


def _margin_reason(disk: DiskPlan) -> str:
    return f"at least {human(disk.margin_bytes)} stay free"


def _print_notes(notes: tuple[str, ...], console: Console) -> None:
    for note in notes:
        console.print(f"[yellow]Note:[/] {escape(note)}.", highlight=False, soft_wrap=True)


def _value(option: object, value: object) -> str:
    """A value of an option as its operator would write it."""
    kind = OPTIONS[str(option)].kind
    if isinstance(value, str):
        return value
    return kind.show(value) if isinstance(kind, Size) else f"{value:,}"


def print_refusal(refusal: PlanRefused, console: Console) -> None:
    """A refusal: by how much, and what would fit."""
    console.print(
        f"[bold red]refused:[/] {escape(refusal.message)}", highlight=False, soft_wrap=True
    )
    if refusal.shortfall_bytes:
        table = _table("", "bytes", "")
        for name, count in (
            ("needed", refusal.needed_bytes),
            ("budget", refusal.budget_bytes),
            ("planned", refusal.planned_bytes),
            ("shortfall", refusal.shortfall_bytes),
        ):
            if count is not None:
                table.add_row(name, f"{count:,}", human(count))
        console.print(table)
    for step in refusal.adapted:
        console.print(
            f"Already lowered {step['option']} from {_value(step['option'], step['from'])} to "
            f"{_value(step['option'], step['to'])}.",
            highlight=False,
            soft_wrap=True,
        )
    if refusal.suggestions:
        console.print("Any one of these fits:", highlight=False)
        _print_suggestions(refusal.suggestions, console)
    elif refusal.together:
        console.print("No single option is enough; these together fit:", highlight=False)
        _print_suggestions(refusal.together, console)
    else:
        console.print(
            "No option makes it fit; take a smaller model or a device with more memory.",
            highlight=False,
        )


def _print_suggestions(suggestions: tuple[Suggestion, ...], console: Console) -> None:
    table = _table("option", "now", "would fit", "gives")
    for one in suggestions:
        flag = OPTIONS[one.option].flag
        gives = human(one.saves_bytes) if one.saves_bytes else ""
        table.add_row(flag, one.current, one.fits, gives)
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in {"bytes", "", "now", "would fit", "gives"}
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    return table


def _budget_sentence(plan: Plan) -> str:
    if plan.mode == "explicit":
        if (
            plan.host.shared
            and plan.budget_bytes + plan.host.total_bytes == plan.host.available_bytes
        ):
            return (
                f"Budget {exact(plan.budget_bytes)}: what {human(plan.host.total_bytes)} of host "
                f"lines leave of {human(plan.free_at_start_bytes)} free; vram.budget_bytes names "
                "more."
            )
        return (
            f"Budget {exact(plan.budget_bytes)}, as named by vram.budget_bytes; "
            f"{human(plan.free_at_start_bytes)} are free."
        )
    whole = plan.free_at_start_bytes == plan.device.total_bytes
    of_card = " (the whole card; --free names another figure)" if whole else ""
    host = plan.host.total_bytes if plan.host.shared else 0
    beside = f" and {human(host)} of host lines" if host else ""
    return (
        f"Budget {exact(plan.budget_bytes)}: {human(plan.free_at_start_bytes)} free{of_card} less "
        f"a headroom of {human(plan.headroom_bytes)}{beside}."
    )


def _unused_reason(plan: Plan) -> str:
    if plan.pool_named is not None:
        return f"the pool was named: {plan.pool_named}"
    return (
        "less than one page"
        if plan.spare_bytes < plan.kv_page_bytes
        else "the pool holds every lane's whole context"
    )


def _counts(plan: Plan) -> Iterator[str]:
    yield (
        f"KV pool: {plan.pages:,} pages of {plan.page_tokens} tokens, {plan.pool_tokens:,} tokens "
        f"in all, {plan.kv_page_bytes // plan.page_tokens:,} bytes a token ({plan.kv_format})."
    )
    threads = f", {plan.threads} threads" if plan.device.kind == "cpu" else ""
    yield (
        f"{plan.lanes} lanes, a context of {plan.context_tokens:,} tokens (trained for "
        f"{plan.model.context_trained:,}), prefill chunks of {plan.chunk_tokens:,} tokens{threads}."
    )
    slots = plan.retained_device_slots + plan.retained_host_slots
    if slots:
        yield (
            f"{slots:,} retained slots, {plan.retained_device_slots:,} on the device and "
            f"{plan.retained_host_slots:,} in host memory, each with a page of the pool."
        )
