"""Proofs: which connections to this node were made by members of its cluster.
Both ends of a link prove that they know the tokens of both members, which only readers of the database know.
`stream_node.fleet.cluster.link` has the end of the caller."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from ockam.actors.address import Address
from ockam.protocol import ProtocolError
from stream_node.fleet.cluster.protocol import LinkResponse, Role
from stream_node.fleet.cluster.view import StoredMember

NONCE_BYTES = 32


def prove(role: Role, tokens: tuple[str, str], nonces: tuple[bytes, bytes]) -> bytes:
    """Returns the proof of one member that it knows both tokens. tokens, nonces: the caller's, then the called
    member's."""
    key = "\0".join(tokens).encode()
    return hmac.new(key, role + b"".join(nonces), hashlib.sha256).digest()


class Proofs:
    """The connections that members have proved to have made, and those whose proof is expected.
    Invariant: no connection is both expected to prove itself and proved."""

    def __init__(self, token: str, new_nonce: Callable[[], bytes], is_open: Callable[[Address], bool]) -> None:
        self._token = token
        self._new_nonce = new_nonce
        self._is_open = is_open
        self._expected: dict[Address, bytes] = {}
        self._proved: set[Address] = set()

    def begin(self, connection: Address, caller: StoredMember, nonce: bytes) -> LinkResponse:
        """Begins the proof of a connection that a member seems to have made. Returns the answer, with the proof of this
        end."""
        # Connections that have ended are forgotten here, so the tables stay as small as the cluster.
        self._proved = {each for each in self._proved if self._is_open(each) and each != connection}
        self._expected = {each: proof for each, proof in self._expected.items() if self._is_open(each)}
        tokens, nonces = (caller.token, self._token), (nonce, self._new_nonce())
        self._expected[connection] = prove(b"caller", tokens, nonces)
        return LinkResponse(nonces[1], prove(b"called", tokens, nonces))

    def finish(self, connection: Address, proof: bytes) -> None:
        """Notes that a member has made this connection. Raises ProtocolError if the proof is wrong."""
        expected = self._expected.pop(connection, None)
        if expected is None or not hmac.compare_digest(expected, proof):
            raise ProtocolError("the proof of a member is wrong")
        self._proved.add(connection)

    def is_member(self, connection: Address) -> bool:
        return connection in self._proved
