"""`ignis serve`: the life of the process, from its options to its exit status.

Order: take the address, so that a taken port costs nothing; plan and print; answer `/ready` with
503 while the model loads; serve; on a signal drain, on a second one stop at once.

Exit statuses:

    0        every request was answered before the process ended
    1        the address, the model or the engine failed (any other IgnisError)
    2        an option is wrong (ConfigError)
    3        the plan does not fit, or a card's driver took more (PlanRefused)
    128 + n  signal n ended the process before every request was answered, or during the load

1 to 3 are the command's, for what `serve` raises.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from typing import Any

from aiohttp import web
from rich.console import Console

from ignis import __version__
from ignis.config import Config
from ignis.engine import EngineService
from ignis.errors import EngineError
from ignis.plan import NativeCore, Plan
from ignis.plan.report import print_plan
from ignis.server.app import QuietBadRequests, build_app
from ignis.server.listening import address_of, check_exposure, listening
from ignis.server.loading import plan_model, running_model
from ignis.server.serving import ServerSettings, Serving
from ignis.telemetry import Metrics, configure_logging, events

EXIT_OK = 0
EXIT_SIGNAL = 128

SHUTDOWN_SECONDS = 5.0
"""How long answers that are complete may take to reach their clients at the end."""

HEALTH_SECONDS = 1.0
"""How often a running server looks whether its engine still runs."""

SWITCH_SECONDS = 1e-4
"""How long a thread may keep the interpreter while another waits for it. The engine thread waits
when a round is done, and Python's 5 ms are as long as a round."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(config: Config) -> int:
    """Serve the configured model until a signal; the exit status.

    Raises IgnisError, PlanRefused among them, for what the operator must change; nothing stays
    reserved then.
    """
    logging.getLogger("aiohttp.server").addFilter(QuietBadRequests())
    pretty = configure_logging(config.log.format, config.log.level)
    # Where the log is one JSON object a line, what is for people goes to standard error.
    console = Console(stderr=not pretty)
    events.process_started(__version__)
    named = [key for key, source in config.sources.items() if source.named]
    events.config_source(config.file, config.profile, named)
    check_exposure(config.server.bind, config.server.api_key)
    with listening(config.server.bind) as taken:
        plan = plan_model(config, console)
        print_plan(plan, console)
        events.device_chosen(plan.device)
        events.vram_plan(plan)
        events.host_plan(plan.host)
        sys.setswitchinterval(SWITCH_SECONDS)
        return asyncio.run(_Server(config, plan, taken, console).run())


class _Server:
    """One run of the server, on its event loop."""

    def __init__(self, config: Config, plan: Plan, taken: socket.socket, console: Console) -> None:
        self._config = config
        self._plan = plan
        self._taken = taken
        self._console = console
        self._metrics = Metrics(__version__)
        self._began = time.monotonic()
        self._signal = 0  # the first one that came
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal; the exit status."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP: leave it so
                loop.add_signal_handler(number, self._on_signal, number)
        options = self._config.server
        settings = ServerSettings(
            api_key=options.api_key,
            body_max_bytes=options.body_max_bytes,
            keepalive_seconds=options.keepalive_seconds,
            request_timeout=options.request_timeout,
        )
        serving = Serving(settings, self._metrics, __version__)
        runner = web.AppRunner(
            build_app(serving),
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, self._taken).start()
            return await self._until_signal(serving)
        finally:
            # Handlers have all they need by now; they get a moment to send it.
            await runner.cleanup()

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        else:
            self._signal = number
            self._stop.set()

    async def _until_signal(self, serving: Serving) -> int:
        working = asyncio.create_task(self._load_and_serve(serving))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.loaded is None and not working.done():
            working.cancel()
            await asyncio.wait([working])
            return EXIT_SIGNAL + self._signal
        return await working

    async def _load_and_serve(self, serving: Serving) -> int:
        core, kind = NativeCore(), self._plan.device.kind
        free_before = core.free_bytes(kind)
        async with running_model(self._config, self._plan, self._metrics, self._console) as (
            model,
            service,
        ):
            host = self._plan.host
            planned = self._plan.total_bytes + (host.total_bytes if host.shared else 0)
            events.vram_loaded(planned, free_before, core.free_bytes(kind))
            self._metrics.plan_sealed(self._plan, model.id)
            serving.loaded = model
            address = address_of(self._taken)
            events.process_ready(address, (time.monotonic() - self._began) * 1e3)
            self._greet(model.id, address)
            await self._stopped_or_failed(service)
            drained = await self._drain(service)
            return EXIT_OK if drained else EXIT_SIGNAL + self._signal

    async def _stopped_or_failed(self, service: EngineService[Any, Any]) -> None:
        while not self._stop.is_set():
            if not service.healthy:
                raise EngineError(f"the engine stopped: {service.failure}")
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stopping], timeout=HEALTH_SECONDS)
            stopping.cancel()

    async def _drain(self, service: EngineService[Any, Any]) -> bool:
        """Let requests finish; False if a second signal or the time limit came first."""
        limit = self._config.server.drain_timeout
        if service.open_count:
            self._console.print(
                f"Finishing {service.open_count} requests, for at most {limit:g} seconds; "
                "a second signal stops at once.",
                highlight=False,
            )
        draining = asyncio.create_task(service.drain(limit))
        stopping = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait([draining, stopping], return_when=asyncio.FIRST_COMPLETED)
        drained = draining.done() and draining.result()
        draining.cancel()
        stopping.cancel()
        return drained

    def _greet(self, model_id: str, address: str) -> None:
        self._console.print(f"Serving {model_id} at {address}", highlight=False)
        if address.startswith("http"):
            self._console.print(f"How to call it: {address}/docs", highlight=False)
