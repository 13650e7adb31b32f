"""Metric families in Prometheus' shapes, each sample of a family under one label or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)


def gauge(name: str, text: str, values: Mapping[str, int], label: str = "") -> GaugeMetricFamily:
    """`ignis_<name>`; without a label, `values` has one entry under the empty text."""
    family = GaugeMetricFamily(f"ignis_{name}", text, labels=[label] if label else None)
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    return family


def gauge_by(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]
) -> GaugeMetricFamily:
    """`ignis_<name>` under several labels."""
    family = GaugeMetricFamily(f"ignis_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def counter(
    name: str, text: str, values: Mapping[str, int], label: str = ""
) -> CounterMetricFamily:
    """`ignis_<name>_total`; otherwise as `gauge`."""
    family = CounterMetricFamily(f"ignis_{name}", text, labels=[label] if label else None)
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    return family


def counter_by(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    """`ignis_<name>_total` under several labels."""
    family = CounterMetricFamily(f"ignis_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def histogram(
    name: str, text: str, buckets: Sequence[tuple[str, float]], total: float
) -> HistogramMetricFamily:
    """`ignis_<name>` from cumulative buckets and the sum of what was observed."""
    family = HistogramMetricFamily(f"ignis_{name}", text)
    family.add_metric([], buckets, total)
    return family
