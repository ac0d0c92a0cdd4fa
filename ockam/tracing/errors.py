from __future__ import annotations


class TracingUnavailable(Exception):
    """Traces are on, but cannot be made: the extra `otel` is missing, or the address of the collector is wrong."""
