"""Scheduling and running: requests in, tokens out, one engine thread between.

service = EngineService(native_core(engine), options, metrics)
async with service, service.submit(request) as stream:
    async for batch in stream: ...
"""

from ignis.admission.reservation import NeverFits
from ignis.engine.api import (
    EngineOptions,
    FinishReason,
    Mark,
    RequestClass,
    ReuseSource,
    SamplingParams,
    SequenceRequest,
    SequenceTimes,
    TokenBatch,
    TokenOut,
)
from ignis.engine.errors import Draining, EngineFailed, QueueFull, Unavailable
from ignis.engine.metrics import (
    EngineMetrics,
    Fact,
    FactName,
    KindName,
    NoMetrics,
    RefusalReason,
    RoundStats,
    TierName,
)
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
    "Mark",
    "RequestClass",
    "ReuseSource",
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
    "Fact",
    "FactName",
    "KindName",
    "TierName",
    "Core",
    "native_core",
]
