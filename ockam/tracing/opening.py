"""`open_tracing`: opens a Tracing. OpenTelemetry is loaded only when this function is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing

TRACES_PATH = "/v1/traces"
INSTALL = "in a checkout: pip install '.[otel]'"


class TracingUnavailable(Exception):
    """Traces are on, but cannot be made: the extra `otel` is missing, or the address of the collector is wrong."""


def open_tracing(endpoint: str | None, service: str, on_outage: Callable[[bool], None] | None = None) -> Tracing:
    """Opens a Tracing, which runs a thread until it is closed. Raises TracingUnavailable.

    endpoint: the URL of a collector that speaks OTLP over HTTP, such as http://127.0.0.1:4318. None: the standard
    variables of OpenTelemetry, such as OTEL_EXPORTER_OTLP_ENDPOINT, say where the collector is.
    service: the name of this program in its spans, unless OTEL_SERVICE_NAME gives another one.
    on_outage: called in the exporting thread, with True when the collector begins to fail, and with False when it takes
    spans again. With it, OpenTelemetry's own log lines are turned off in this process."""
    url = None if endpoint is None else traces_url(endpoint)
    try:
        from ockam.tracing.spans import Tracing
    except ImportError as error:
        raise TracingUnavailable(f"traces need the extra `otel` ({error.name}): {INSTALL}") from error
    return Tracing(url, service, on_outage)


def traces_url(endpoint: str) -> str:
    """Returns the URL to which spans are sent: `endpoint`, with a path. Raises TracingUnavailable."""
    try:
        parts = urlsplit(endpoint)
        parts.port  # noqa: B018  (raises ValueError)
    except ValueError as error:
        raise TracingUnavailable(_not_url(endpoint)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracingUnavailable(_not_url(endpoint))
    return endpoint if parts.path.strip("/") else parts._replace(path=TRACES_PATH).geturl()


def _not_url(endpoint: str) -> str:
    return f"{endpoint!r} is not the URL of a collector of traces; one is http://127.0.0.1:4318"
