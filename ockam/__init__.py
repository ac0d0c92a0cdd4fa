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
that needs only `Protocol` does not have to install trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import companion as _companion  # noqa: F401 - first, so that compiled modules are found

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
    "ANONYMOUS": "identity",
    "Address": "address",
    "AddressInUse": "errors",
    "BadFrame": "frames",
    "ConnectFailed": "errors",
    "ConnectionLimits": "connection_machine",
    "ConnectionStatistics": "connection_machine",
    "Context": "worker",
    "DEFAULT_PORT": "address",
    "DENIED": "gate",
    "ERROR": "protocol",
    "FrameReader": "frames",
    "FrameTooLarge": "errors",
    "FrameWriter": "frames",
    "Framing": "calling",
    "Gate": "gate",
    "HEAD": "wire_head",
    "HERE": "message",
    "HandlingFailed": "worker",
    "Identity": "identity",
    "InvalidAddress": "errors",
    "LEGACY": "wire_legacy",
    "LOCAL": "address",
    "Mailbox": "mailbox",
    "Message": "message",
    "NODE": "identity",
    "Node": "node",
    "NodeStatistics": "node",
    "OckamError": "errors",
    "Origin": "message",
    "Protocol": "protocol",
    "ProtocolError": "protocol",
    "RemoteProtocolError": "errors",
    "Route": "address",
    "TCP": "address",
    "TcpStatistics": "tcp_statistics",
    "TcpTransport": "tcp",
    "Wire": "wire",
    "Worker": "worker",
    "WorkerFactory": "worker",
    "format_route": "address",
    "local": "address",
    "parse_address": "address",
    "parse_route": "address",
    "reply_to": "message",
}
"""For each public name, the module of this package that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
