"""Workers that exchange routed messages, and the TCP transport that carries the messages between nodes.

    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.register([local("echo")], Echo)
        transport = TcpTransport(node, nursery)
        await transport.listen("127.0.0.1", 4000)

- A `Worker` has an `Address` and handles `Message`s. A `Node` routes messages to workers and runs them.
- A `Protocol` encodes and decodes payloads.
- `TcpTransport` connects nodes. `FrameReader` and `FrameWriter` encode and decode frames, without sockets.

This package does not depend on streams or SQL. Each public name is imported on its first use, so a client
that needs only `Protocol` does not have to install trio."""

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
    )
    from ockam.actors.mailbox import Mailbox
    from ockam.actors.message import HERE, Message, Origin, reply_to
    from ockam.actors.node import Node, NodeStatistics
    from ockam.actors.worker import Context, HandlingFailed, Worker, WorkerFactory
    from ockam.errors import AddressInUse, ConnectFailed, FrameTooLarge, InvalidAddress, OckamError, RemoteProtocolError
    from ockam.identity.gate import DENIED, Gate
    from ockam.identity.identity import ANONYMOUS, NODE, Identity
    from ockam.protocol import ERROR, Protocol, ProtocolError
    from ockam.transport.calling import Framing
    from ockam.transport.connection_machine import ConnectionLimits, ConnectionStatistics
    from ockam.transport.frames import BadFrame, FrameReader, FrameWriter
    from ockam.transport.tcp import TcpTransport
    from ockam.transport.tcp_statistics import TcpStatistics
    from ockam.transport.wire import Wire
    from ockam.transport.wire_head import HEAD
    from ockam.transport.wire_legacy import LEGACY

__all__ = [
    "ANONYMOUS",
    "DEFAULT_PORT",
    "DENIED",
    "ERROR",
    "HEAD",
    "HERE",
    "LEGACY",
    "LOCAL",
    "NODE",
    "TCP",
    "Address",
    "AddressInUse",
    "BadFrame",
    "ConnectFailed",
    "ConnectionLimits",
    "ConnectionStatistics",
    "Context",
    "FrameReader",
    "FrameTooLarge",
    "FrameWriter",
    "Framing",
    "Gate",
    "HandlingFailed",
    "Identity",
    "InvalidAddress",
    "Mailbox",
    "Message",
    "Node",
    "NodeStatistics",
    "OckamError",
    "Origin",
    "Protocol",
    "ProtocolError",
    "RemoteProtocolError",
    "Route",
    "TcpStatistics",
    "TcpTransport",
    "Wire",
    "Worker",
    "WorkerFactory",
    "format_route",
    "local",
    "parse_address",
    "parse_route",
    "reply_to",
]

_MODULES = {
    "ANONYMOUS": "identity.identity",
    "Address": "actors.address",
    "AddressInUse": "errors",
    "BadFrame": "transport.frames",
    "ConnectFailed": "errors",
    "ConnectionLimits": "transport.connection_machine",
    "ConnectionStatistics": "transport.connection_machine",
    "Context": "actors.worker",
    "DEFAULT_PORT": "actors.address",
    "DENIED": "identity.gate",
    "ERROR": "protocol",
    "FrameReader": "transport.frames",
    "FrameTooLarge": "errors",
    "FrameWriter": "transport.frames",
    "Framing": "transport.calling",
    "Gate": "identity.gate",
    "HEAD": "transport.wire_head",
    "HERE": "actors.message",
    "HandlingFailed": "actors.worker",
    "Identity": "identity.identity",
    "InvalidAddress": "errors",
    "LEGACY": "transport.wire_legacy",
    "LOCAL": "actors.address",
    "Mailbox": "actors.mailbox",
    "Message": "actors.message",
    "NODE": "identity.identity",
    "Node": "actors.node",
    "NodeStatistics": "actors.node",
    "OckamError": "errors",
    "Origin": "actors.message",
    "Protocol": "protocol",
    "ProtocolError": "protocol",
    "RemoteProtocolError": "errors",
    "Route": "actors.address",
    "TCP": "actors.address",
    "TcpStatistics": "transport.tcp_statistics",
    "TcpTransport": "transport.tcp",
    "Wire": "transport.wire",
    "Worker": "actors.worker",
    "WorkerFactory": "actors.worker",
    "format_route": "actors.address",
    "local": "actors.address",
    "parse_address": "actors.address",
    "parse_route": "actors.address",
    "reply_to": "actors.message",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
