"""Counters and histograms. Exporters are adapters that read `snapshot()`; nothing here knows of them."""

from penstock.telemetry.meters import Histogram, Meters

__all__ = ["Histogram", "Meters"]
