"""Many clients in one program: sockets that each send a request, wait for its answer, and send the next one.

The same program asks every server, since a thousand clients of a library would measure that library.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence

from bench.peer_clients.load import Clock, Done, Load

READ_BYTES = 65_536
POLL_S = 1.0


def ask_in_turns(
    port: int, load: Load, requests: Sequence[bytes], is_whole: Callable[[bytes], bool], hello: bytes = b""
) -> Done:
    """Sends each request on a socket of its own, and again after each answer. Times every request.

    is_whole: whether these bytes are a whole answer. hello: what both sides send first.
    """
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in requests]
    poll = select.epoll()
    asking: dict[int, tuple[socket.socket, bytes]] = {}
    began_ns: dict[int, int] = {}
    arrived: dict[int, bytes] = {}
    clock, answered = Clock(load), 0
    for each, request in zip(sockets, requests, strict=True):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.sendall(hello + request)
        number = each.fileno()
        poll.register(number, select.EPOLLIN)
        asking[number], began_ns[number], arrived[number] = (each, request), time.perf_counter_ns(), b""
    while clock.goes_on(answered):
        for number, _ in poll.poll(POLL_S):
            each, request = asking[number]
            data = each.recv(READ_BYTES)
            if not data:
                raise ConnectionError(f"the server closed a connection after {answered} answers")
            arrived[number] += data
            if is_whole(arrived[number].removeprefix(hello)):
                clock.add(began_ns[number])
                answered += 1
                arrived[number], began_ns[number] = b"", time.perf_counter_ns()
                each.sendall(request)
    done = clock.done(answered)
    poll.close()
    for each in sockets:
        each.close()
    return done
