"""From a configuration to the served model: find, plan, load, and start its engine.

Each step is its own function because they run at different moments: the plan before the server
answers, the load while it already does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from ignis.catalogue import fetch_if_missing, model_id
from ignis.config import Config
from ignis.engine import EngineOptions, EngineService, native_core
from ignis.engine.counted import compare, driver_count, refuse_beyond
from ignis.engine.load import load_engine, new_progress, read_metadata
from ignis.engine.metrics import EngineMetrics
from ignis.errors import TemplateMissing
from ignis.plan import Plan, make_plan
from ignis.plan.report import plan_as_dict, tell_of_kernels
from ignis.server.serving import LoadedModel
from ignis.telemetry import events
from ignis.text import (
    ChatMarks,
    ChatTemplate,
    Tokenizer,
    find_template,
    from_gguf,
    from_tokenizer_json,
)

POLL_SECONDS = 0.1
KV_DISK = 1  # the tier's number in the core

T = TypeVar("T")


def plan_model(config: Config, console: Console) -> Plan:
    """The plan of the configured model, which is fetched first if it is known and missing.

    Raises CatalogueError, ModelFileError, ConfigError or PlanRefused.
    """
    path = fetch_if_missing(config.model.path, config.cache_folder, console)
    say = tell_of_kernels(console)

    def tell(title: str, folder: Path) -> None:
        say(title, folder)
        events.kernels_compiled(title, folder)

    return make_plan(config, path, tell=tell)


def served_id(config: Config) -> str:
    """The name clients use for the model."""
    return config.model.id or model_id(config.model.path)


def text_of_model(config: Config, path: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and the chat template of the model at `path`.

    Raises ModelFileError or TemplateError; a model without a template gives None.
    """
    folder = path if path.is_dir() else None
    metadata = None if folder is not None else read_metadata(str(path))
    tokenizer = from_tokenizer_json(folder) if folder is not None else from_gguf(metadata or {})
    try:
        source = find_template(
            explicit=config.model.chat_template, folder=folder, metadata=metadata
        )
    except TemplateMissing:
        return tokenizer, None
    return tokenizer, ChatTemplate(source, tokenizer.template_tokens())


@asynccontextmanager
async def running_model(
    config: Config, plan: Plan, metrics: EngineMetrics | None, console: Console
) -> AsyncIterator[tuple[LoadedModel, EngineService[Any, Any]]]:
    """Load the planned model with a progress bar and run its engine until the end of the block.

    Raises ModelFileError, TemplateError, EngineError, or PlanRefused where the load took more of a
    card than was planned.
    """
    path = Path(plan.model.path)
    tokenizer, template = await in_daemon_thread(lambda: text_of_model(config, path))
    progress = new_progress()
    loading = asyncio.ensure_future(
        in_daemon_thread(lambda: load_engine(plan, progress, ids=tokenizer.vocab_size))
    )
    with _bar(console) as bar:
        task = bar.add_task("loading", total=None)
        while not loading.done():
            bar.update(task, completed=progress.bytes_done(), total=progress.bytes_total() or None)
            await asyncio.wait([loading], timeout=POLL_SECONDS)
    engine = loading.result()
    options = EngineOptions(
        context_tokens_max=plan.context_tokens,
        chunk_tokens_max=plan.chunk_tokens,
        default_tokens_max=config.model.default_max_tokens,
        queue_max=config.server.queue_max,
        decode_share_percent=config.model.decode_share,
        reuse_prompt=reuses_prompts(config, plan),
        retained_interactive_ttl_s=config.reuse.retained_interactive_ttl,
    )
    events.retained_slots(
        plan.retained_device_slots, plan.retained_host_slots, plan.retained_host_bytes
    )
    if (recorded := engine.recorded_rounds) is not None:
        events.device_recorded(*recorded)
    compare_counted(plan)
    if plan.disk is not None:
        events.kv_disk_ready(
            plan.disk,
            windows_used=engine.windows_total(KV_DISK) - engine.windows_free(KV_DISK),
            images_removed=engine.disk_state()[0],
        )
    async with EngineService(native_core(engine), options, metrics) as service:
        yield (
            LoadedModel(
                id=served_id(config),
                context_tokens_max=plan.context_tokens,
                tokenizer=tokenizer,
                template=template,
                service=service,
                marks=ChatMarks(tokenizer, plan.page_tokens),
                checkpoints=config.reuse.prompt,
                facts=facts_of(plan),
            ),
            service,
        )


def compare_counted(plan: Plan) -> None:
    """Tells what a card's driver counts to this process after the load.

    Raises PlanRefused where it is more than was planned.
    """
    if plan.device.kind != "cuda":
        return
    counted = compare(plan, driver_count())
    events.device_counted(counted)
    refuse_beyond(counted, plan)


def reuses_prompts(config: Config, plan: Plan) -> bool:
    """Whether anything is retained of prompts: checkpoints too, or only prefixes, for which slots
    were named though reuse.prompt is off."""
    return config.reuse.prompt or plan.retained_device_slots + plan.retained_host_slots > 0


def facts_of(plan: Plan) -> dict[str, Any]:
    """What `/v1/models` tells of a plan; no path of this machine."""
    told = plan_as_dict(plan)
    model = told["model"]
    assert isinstance(model, dict)
    kept = ("architecture", "quantisation", "parameters", "context_trained")
    sizes = ("budget_bytes", "total_bytes", "spare_bytes", "lines", "kv_pool", "retained_slots")
    host = told["host"]
    assert isinstance(host, dict)
    return {
        "status": "serving",
        "adapted": told["adapted"],
        "device": told["device"],
        "lanes": plan.lanes,
        "kv_format": plan.kv_format,
        "model": {key: model[key] for key in kept},
        "plan": {key: told[key] for key in sizes}
        | {"host_lines": host["lines"], "kv_disk_bytes": plan.kv_disk_bytes},
    }


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that cannot keep the process from ending.

    A load cannot be interrupted; when the server is told to stop during one, the process just ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # handed to whoever waits
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="ignis-load", daemon=True).start()
    return await done


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
