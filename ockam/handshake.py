"""The first bytes of a connection: learning which framing the peer speaks, and taking its hello off.

What the bytes mean is decided in `era`; this module keeps them until they suffice. Only `skip_hello` reads a socket.
"""

from __future__ import annotations

import trio

from ockam.era import maybe_wire
from ockam.errors import RemoteProtocolError
from ockam.wire import Wire
from ockam.wire_head import HEAD

READ_BYTES_MAX = 256 * 1024


class Opening:
    """What has come from a peer that called us, until its framing is known.

    The byte 01 alone is a head client's hello, and the Elixir client sends nothing more before it has ours. So it is
    answered at once, although it could be the beginning of a legacy frame of 256 to 511 bytes that was torn apart
    behind its first byte. No known client tears it there. If one does, its stream has our hello in it by then, which a
    legacy client would read as the size of a frame: the connection ends, and nothing of the frame is carried out.
    Invariant: `first` is everything that has come, hello included; `wire` is what it tells, None while that is open.
    """

    def __init__(self) -> None:
        self.first = b""
        self.wire: Wire | None = None
        self._answered = False

    @property
    def frame_begun(self) -> bool:
        """Whether a frame has begun. After nothing, and after a lone hello, a peer may be silent for as long as it
        likes."""
        return self.first not in (b"", HEAD.hello)

    def feed(self, chunk: bytes) -> bytes:
        """Take the bytes that came next; what is to be answered at once, mostly nothing.

        Raises RemoteProtocolError (torn_header) where what was answered as a hello was none.
        """
        self.first += chunk
        self.wire = maybe_wire(self.first)
        if self._answered and self.wire not in (None, HEAD):
            raise RemoteProtocolError("torn_header", "a legacy frame came with its first byte, 01, alone, like a hello")
        if self._answered or not (self.wire is HEAD or self.first == HEAD.hello):
            return b""
        self._answered = True
        return HEAD.hello


async def skip_hello(stream: trio.abc.ReceiveStream, chunk: bytes, hello: bytes, hello_s: float) -> bytes:
    """`chunk` without the peer's hello, which is waited for where nothing has come. Raises RemoteProtocolError."""
    if not chunk:
        with trio.move_on_after(hello_s):
            chunk = bytes(await stream.receive_some(READ_BYTES_MAX))
    if not chunk.startswith(hello):
        raise RemoteProtocolError("header", f"the peer opened with {chunk[:1].hex() or 'nothing'}, not {hello.hex()}")
    return chunk[len(hello) :]
