"""The stream service: durable, ordered streams over routed messages.

    directory = StreamDirectory(node, storage, limits=StreamLimits(), clock=clock, new_id=new_id)
    register_service(directory)

- `stream_service.protocol` defines the messages of the specification.
- `stream_service.stored` and `stream_service.operations` read and write the stored data of streams.
- `stream_service.workers` contains the workers: the stream service, one worker for each stream-partition, and
  retention.

The clients are in `stream_client`. Each name of this package is imported at its first use, so a client that needs only
the messages loads neither the workers nor the storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import companion as _companion  # noqa: F401 - first, so that compiled modules are found

if TYPE_CHECKING:
    from stream_service.counters import StreamCounters
    from stream_service.limits import StreamLimits
    from stream_service.names import partition_of, stream_address
    from stream_service.stored import StoredStream
    from stream_service.workers.clock import Clock
    from stream_service.workers.directory import StreamDirectory
    from stream_service.workers.retention import register_retention
    from stream_service.workers.service import register_service

__all__ = [
    "Clock",
    "StoredStream",
    "StreamCounters",
    "StreamDirectory",
    "StreamLimits",
    "partition_of",
    "register_retention",
    "register_service",
    "stream_address",
]

_MODULES = {
    "Clock": "workers.clock",
    "StoredStream": "stored",
    "StreamCounters": "counters",
    "StreamDirectory": "workers.directory",
    "StreamLimits": "limits",
    "partition_of": "names",
    "register_retention": "workers.retention",
    "register_service": "workers.service",
    "stream_address": "names",
}
"""Maps each public name of this package to the module that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
