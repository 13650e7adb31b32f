"""Events and metrics. This package knows no model, no device and no server: it is told."""

from ignis.telemetry.logs import configure_logging
from ignis.telemetry.metrics import CONTENT_TYPE, Metrics

__all__ = ["Metrics", "CONTENT_TYPE", "configure_logging"]
