"""A door to a node that misbehaves: it ends connections, or holds them, after so many bytes of answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from ockam.actors.address import split_host_port

ALL = 1 << 60
CHUNK_BYTES = 65536


class Gate(threading.Event):
    """Connections that are held go on when it is set. held: how many have been held."""

    held = 0


@contextmanager
def door(address: str, limits: Sequence[int], opened: threading.Event | None = None) -> Iterator[str]:
    """The address of the door.

    limits: how many bytes of answers each connection lets through, the first connections first; ALL for those beyond.
    What comes then is that the connection ends, or, where `opened` is given, that it goes on when that is set.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        serving = threading.Thread(target=_serve, args=(listener, address, list(limits), opened), daemon=True)
        serving.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # Without it, the thread would accept one more connection after the listener is closed.
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()


def _serve(listener: socket.socket, address: str, limits: list[int], opened: threading.Event | None) -> None:
    with suppress(OSError):
        while True:
            near = listener.accept()[0]
            try:
                far = socket.create_connection(split_host_port(address))
            except OSError:
                near.close()
                continue
            most = limits.pop(0) if limits else ALL
            threading.Thread(target=_carry, args=(near, far, ALL, None), daemon=True).start()
            threading.Thread(target=_carry, args=(far, near, most, opened), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket, most: int, opened: threading.Event | None) -> None:
    """Carry bytes one way, then end both ways; a thread that waits in `recv` sees the end of its connection."""
    with suppress(OSError):
        while data := source.recv(min(most, CHUNK_BYTES)):
            target.sendall(data)
            most -= len(data)
            if most <= 0:
                if opened is None:
                    break
                if isinstance(opened, Gate):
                    opened.held += 1
                opened.wait(60)
                most = ALL
    for connection in (source, target):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
