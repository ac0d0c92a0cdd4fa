"""Calling: opens the connections that this node makes to other nodes, and finds out the framing of each.

A node with the head framing answers our hello, the byte 01, with its own at once. A legacy node takes our hello for the
first half of a frame's length and stays silent: that connection is useless, and the node is called again."""

from __future__ import annotations

import math
import socket
from typing import Literal, TypeAlias

import trio

from ockam.actors.address import split_host_port
from ockam.errors import ConnectFailed
from ockam.identity.tls import OutgoingTls, Tls, TlsFilesError
from ockam.identity.tls_layer import TlsFault, TlsLayer
from ockam.identity.tls_stream import connect_tls
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""The framing of a connection that we make: `head` for Ockam since June 2024, `legacy` for older Ockam.

`auto`: head if the other node answers our hello within AUTO_WAIT_S, else legacy. Always head with TLS."""

AUTO_WAIT_S = 2.0
"""The longest wait for the answer to our hello with `auto`. A call of a legacy node waits so once in LEGACY_KEPT_S."""
LEGACY_KEPT_S = 600.0
"""How long a silent destination counts as a legacy node. A busy node with the head framing can be silent too."""
CONNECT_TIMEOUT_S = 10.0


class Caller:
    def __init__(self, tls: OutgoingTls) -> None:
        self._tls = tls
        # The framing of a destination that was called with `auto`, and the time until which it counts.
        self._known: dict[str, tuple[Framing, float]] = {}

    async def call(
        self, destination: str, framing: Framing, is_own: bool
    ) -> tuple[trio.SocketStream, Wire, TlsLayer | None]:
        """Opens a connection, and sends our hello if its framing has one. Returns the connection, framing and TLS.

        is_own: see `OutgoingTls.find`. Raises ConnectFailed, InvalidAddress."""
        # A destination that was asked before is not asked again for some time: asking a legacy node takes AUTO_WAIT_S.
        known, until_s = self._known.get(destination, (None, 0.0))
        if framing == "auto" and known is not None and trio.current_time() < until_s:
            framing = known
        stream, tls = await self._open(destination, is_own, greets=framing != "legacy")
        if framing != "auto" or tls is not None:
            return stream, LEGACY if framing == "legacy" else HEAD, tls
        if await _is_answered(stream):
            self._known[destination] = "head", math.inf
            return stream, HEAD, None
        # The connection on which a legacy node has got our hello cannot be used.
        stream.socket.close()
        self._known[destination] = "legacy", trio.current_time() + LEGACY_KEPT_S
        stream, tls = await self._open(destination, is_own, greets=False)
        return stream, LEGACY, tls

    def forget(self, destination: str) -> None:
        self._known.pop(destination, None)

    async def _open(self, destination: str, is_own: bool, *, greets: bool) -> tuple[trio.SocketStream, TlsLayer | None]:
        host, port = split_host_port(destination)
        stream: trio.SocketStream | None = None
        settings: Tls | None = None
        tls: TlsLayer | None = None
        is_open = False
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                # The time limit is for all steps together: name, connection, TLS and hello.
                settings = self._tls.find(destination, is_own)
                stream = await trio.open_tcp_stream(host, port)
                if settings is not None:
                    tls = settings.layer(destination)
                    await connect_tls(stream, tls)
                if greets:
                    await stream.send_all(HEAD.hello if tls is None else tls.encrypt(HEAD.hello))
                is_open = True
        # Trio encodes a name with non-ASCII letters more strictly than `split_host_port`, and can raise UnicodeError.
        except (OSError, UnicodeError, trio.TooSlowError) as error:
            raise ConnectFailed(f"cannot reach {destination}: {str(error) or 'no answer in time'}") from error
        except (TlsFault, TlsFilesError, trio.BrokenResourceError) as error:
            what = "connection" if settings is None else "TLS connection"
            raise ConnectFailed(f"no {what} to {destination}: {error}") from error
        finally:
            if stream is not None and not is_open:
                stream.socket.close()
        return stream, tls


async def _is_answered(stream: trio.SocketStream) -> bool:
    try:
        # A byte 00 is no hello but the beginning of a legacy node's heartbeat. Any other answer counts: the connection
        # then ends with a fault that says what came instead of a hello.
        with trio.move_on_after(AUTO_WAIT_S):
            return await stream.socket.recv(1, socket.MSG_PEEK) not in (b"", b"\x00")
    except OSError:
        return False
    except BaseException:
        stream.socket.close()
        raise
    return False
