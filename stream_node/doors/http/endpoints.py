"""The list of everything that the node answers over HTTP."""

from __future__ import annotations

from stream_node.doors.http import health, monitoring
from stream_node.doors.http.app import Endpoint
from stream_node.doors.http.data.endpoints import ENDPOINTS as DATA

ENDPOINTS: tuple[Endpoint, ...] = (*health.ENDPOINTS, *monitoring.ENDPOINTS, *DATA)
