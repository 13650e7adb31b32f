"""Scheduling and running: requests in, tokens out, one engine thread between.

service = EngineService(native_core(engine), options, metrics)
async with service, service.submit(request) as stream:
    async for batch in stream: ...
"""

from ignis.admission.reservation import NeverFits
from ignis.engine.api import (
    EngineOptions,
    FinishReason,
    RequestClass,
    SamplingParams,
    SequenceRequest,
    SequenceTimes,
    TokenBatch,
    TokenOut,
)
from ignis.engine.errors import Draining, EngineFailed, QueueFull, Unavailable
from ignis.engine.metrics import EngineMetrics, NoMetrics, RefusalReason, RoundStats
from ignis.engine.native import Core, native_core
from ignis.engine.service import EngineService
from ignis.engine.stream import Stream

__all__ = [
    "EngineService",
    "Stream",
    "EngineOptions",
    "SequenceRequest",
    "SamplingParams",
    "TokenBatch",
    "TokenOut",
    "FinishReason",
    "RequestClass",
    "SequenceTimes",
    "NeverFits",
    "Unavailable",
    "QueueFull",
    "Draining",
    "EngineFailed",
    "EngineMetrics",
    "NoMetrics",
    "RefusalReason",
    "RoundStats",
    "Core",
    "native_core",
]
