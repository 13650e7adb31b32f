"""A client of the application over a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from ignis.server.serving import ServerSettings
from tests.unit.server.scripted import ScriptedService, client_of, loaded

Start = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start an application: `await start(service, settings, template=...)`."""
    clients: list[TestClient[Any, Any]] = []

    async def begin(
        service: ScriptedService | None = None,
        settings: ServerSettings | None = None,
        **options: Any,
    ) -> TestClient[Any, Any]:
        model = loaded(service or ScriptedService(), **options)
        client = client_of(model, settings)
        await client.start_server()
        clients.append(client)
        return client

    yield begin
    for client in clients:
        await client.close()


@pytest.fixture
async def client(start: Start) -> TestClient[Any, Any]:
    """A client whose model answers "the cat"."""
    return await start()
