"""The index service: keeps one position for each consumer, stream and partition, and leases partitions to consumers.

    service = IndexService(runner, wall_clock_us)
    service.register(node)

- A position is the next index that the consumer will read. A save can raise a position, but never lower it.
- `protocol` defines the messages of the specification. `extensions` defines this project's own messages: saves with an
  answer, lists of positions, changes by an operator, and leases.
- `lease_machine.LeaseMachine` decides which consumer processes which partition. `lease_groups.LeaseGroups` stores the
  leases in the database.

The service does not read streams. Each name of this package is imported at its first use, because clients need only the
messages and must not load the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from index_service.extensions import (
        FENCED_SAVE,
        LEASE,
        POSITIONS,
        SET_POSITION,
        FencedSave,
        Lease,
        LeaseRequest,
        LeaseResponse,
        PositionKey,
        PositionsRequest,
        PositionsResponse,
        SavedPosition,
        SaveResponse,
        SaveStatus,
        SetRequest,
        SetResponse,
    )
    from index_service.limits import LEASE_LIMITS, IndexStatistics, LeaseLimits, LeaseStatistics
    from index_service.protocol import (
        INDEX,
        INDEX_PARTITIONED,
        PARTITIONED_BODY,
        GetIndex,
        GetPartitionIndex,
        Index,
        PartitionIndex,
        SaveIndex,
        SavePartitionIndex,
    )
    from index_service.worker import SERVICE_ADDRESSES, IndexService

__all__ = [
    "FENCED_SAVE",
    "INDEX",
    "INDEX_PARTITIONED",
    "LEASE",
    "LEASE_LIMITS",
    "PARTITIONED_BODY",
    "POSITIONS",
    "SERVICE_ADDRESSES",
    "SET_POSITION",
    "FencedSave",
    "GetIndex",
    "GetPartitionIndex",
    "Index",
    "IndexService",
    "IndexStatistics",
    "Lease",
    "LeaseLimits",
    "LeaseRequest",
    "LeaseResponse",
    "LeaseStatistics",
    "PartitionIndex",
    "PositionKey",
    "PositionsRequest",
    "PositionsResponse",
    "SaveIndex",
    "SavePartitionIndex",
    "SaveResponse",
    "SaveStatus",
    "SavedPosition",
    "SetRequest",
    "SetResponse",
]

_MODULES = {
    "FENCED_SAVE": "extensions",
    "FencedSave": "extensions",
    "GetIndex": "protocol",
    "GetPartitionIndex": "protocol",
    "INDEX": "protocol",
    "INDEX_PARTITIONED": "protocol",
    "Index": "protocol",
    "IndexService": "worker",
    "IndexStatistics": "limits",
    "LEASE": "extensions",
    "LEASE_LIMITS": "limits",
    "Lease": "extensions",
    "LeaseLimits": "limits",
    "LeaseRequest": "extensions",
    "LeaseResponse": "extensions",
    "LeaseStatistics": "limits",
    "PARTITIONED_BODY": "protocol",
    "POSITIONS": "extensions",
    "PartitionIndex": "protocol",
    "PositionKey": "extensions",
    "PositionsRequest": "extensions",
    "PositionsResponse": "extensions",
    "SERVICE_ADDRESSES": "worker",
    "SET_POSITION": "extensions",
    "SaveIndex": "protocol",
    "SavePartitionIndex": "protocol",
    "SaveResponse": "extensions",
    "SaveStatus": "extensions",
    "SavedPosition": "extensions",
    "SetRequest": "extensions",
    "SetResponse": "extensions",
}
"""Maps each public name of this package to the module that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
