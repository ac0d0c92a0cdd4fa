"""Actors that exchange routed messages, as in Ockam: nodes with workers, TCP between nodes, and secure channels.

    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.register([local("echo")], Echo)
        transport = TcpTransport(node, nursery)
        await transport.listen("127.0.0.1", 4000)

- A `Worker` or `AsyncWorker` has an `Address` and handles `Message`s. A `Node` routes messages to workers, and runs
  the workers.
- A `Protocol` encodes and decodes payloads.
- `TcpTransport` connects nodes. `SecureChannels` accepts encrypted channels.

This package does not depend on streams or SQL. Each public name is imported on its first use, so a client that needs
only `Protocol` does not have to install trio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ockam.actors.address import (
        DEFAULT_PORT,
        LOCAL,
        TCP,
        Address,
        Route,
        format_route,
        local,
        parse_address,
        parse_route,
        tcp,
    )
    from ockam.actors.async_worker import AsyncWorker
    from ockam.actors.cell import WorkerState
    from ockam.actors.message import Message, Origin, reply_to
    from ockam.actors.node import Node, NodeStatistics
    from ockam.actors.worker import ALWAYS, FEW, NEVER, Context, Ended, Restarts, Worker, WorkerFactory
    from ockam.errors import (
        AddressInUse,
        AskRefused,
        AskTimedOut,
        CallbackExpected,
        ChildFailed,
        ConnectFailed,
        FrameTooLarge,
        InvalidAddress,
        InvalidMessage,
        OckamError,
        RemoteProtocolError,
        WorkerEnded,
    )
    from ockam.identity.channel.identity_file import ensure_identity
    from ockam.identity.channel.proof import OwnIdentity
    from ockam.identity.channel.trust_list import TrustList
    from ockam.identity.channel.workers.channels import SecureChannels
    from ockam.identity.gate import Gate
    from ockam.identity.identity import Identity
    from ockam.protocol import ERROR, Protocol, ProtocolError, error_payload, failed_payload
    from ockam.transport.calling import Framing
    from ockam.transport.connection_machine import ConnectionLimits, ConnectionStatistics
    from ockam.transport.roster import TcpStatistics
    from ockam.transport.tcp import TcpTransport

__all__ = [
    "ALWAYS",
    "DEFAULT_PORT",
    "ERROR",
    "FEW",
    "LOCAL",
    "NEVER",
    "TCP",
    "Address",
    "AddressInUse",
    "AskRefused",
    "AskTimedOut",
    "AsyncWorker",
    "CallbackExpected",
    "ChildFailed",
    "ConnectFailed",
    "ConnectionLimits",
    "ConnectionStatistics",
    "Context",
    "Ended",
    "FrameTooLarge",
    "Framing",
    "Gate",
    "Identity",
    "InvalidAddress",
    "InvalidMessage",
    "Message",
    "Node",
    "NodeStatistics",
    "OckamError",
    "Origin",
    "OwnIdentity",
    "Protocol",
    "ProtocolError",
    "RemoteProtocolError",
    "Restarts",
    "Route",
    "SecureChannels",
    "TcpStatistics",
    "TcpTransport",
    "TrustList",
    "Worker",
    "WorkerEnded",
    "WorkerFactory",
    "WorkerState",
    "ensure_identity",
    "error_payload",
    "failed_payload",
    "format_route",
    "local",
    "parse_address",
    "parse_route",
    "reply_to",
    "tcp",
]

_MODULES = {
    "actors.address": "Address DEFAULT_PORT LOCAL Route TCP format_route local parse_address parse_route tcp",
    "actors.async_worker": "AsyncWorker",
    "actors.cell": "WorkerState",
    "actors.message": "Message Origin reply_to",
    "actors.node": "Node NodeStatistics",
    "actors.worker": "ALWAYS Context Ended FEW NEVER Restarts Worker WorkerFactory",
    "errors": "AddressInUse AskRefused AskTimedOut CallbackExpected ChildFailed ConnectFailed FrameTooLarge "
    "InvalidAddress InvalidMessage OckamError RemoteProtocolError WorkerEnded",
    "identity.channel.identity_file": "ensure_identity",
    "identity.channel.proof": "OwnIdentity",
    "identity.channel.trust_list": "TrustList",
    "identity.channel.workers.channels": "SecureChannels",
    "identity.gate": "Gate",
    "identity.identity": "Identity",
    "protocol": "ERROR Protocol ProtocolError error_payload failed_payload",
    "transport.calling": "Framing",
    "transport.connection_machine": "ConnectionLimits ConnectionStatistics",
    "transport.roster": "TcpStatistics",
    "transport.tcp": "TcpTransport",
}
"""The public names of each module. A module is imported at the first use of one of its names."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = next((module for module, names in _MODULES.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
