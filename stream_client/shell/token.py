"""TokenExchange: the messages by which a client proves its name with a token, before it sends anything else.

It has no sockets. A token is sent over TLS, or to this machine, and nowhere else.
"""

from __future__ import annotations

from ockam.actors.address import local
from ockam.actors.message import HERE, Message
from ockam.errors import RemoteProtocolError
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest, TokenStatus
from ockam.identity.token import Token, TokenError, is_this_machine
from ockam.protocol import ProtocolError
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire import Wire
from stream_client.core.first_bytes import opens_as_node
from stream_client.errors import AuthenticationFailed, InvalidArgument, NodeUnreachable

KINDS = {TokenStatus.UNKNOWN: "unknown", TokenStatus.EXPIRED: "expired", TokenStatus.REVOKED: "revoked"} | {
    TokenStatus.UNENCRYPTED: "unencrypted",
    TokenStatus.SECOND: "second",
}
"""The kind of an AuthenticationFailed for each status of the node. Every other status is the kind `other`."""
ADVICE = {
    "unknown": "give this client the token that `stream-node token create` has shown on that node",
    "unencrypted": "connect with TLS: Tls(ca=…), --tls-ca or STREAM_NODE_TLS_CA",
}
"""The advice at the end of the error's text, by kind. For the other kinds, the node's reason says what to do."""


def check_token(token: Token | str | None) -> Token | None:
    """Returns the token that a client was given, as a Token; None stays None. Raises InvalidArgument if the token
    cannot be read from its file or from the environment."""
    if token is None:
        return None
    try:
        made = Token(token) if isinstance(token, str) else token
        made.read()
    except TokenError as error:
        raise InvalidArgument(str(error)) from error
    return made


class TokenExchange:
    """One authentication over one new connection. `is_node` is whether the other side has begun as a node does: the
    caller sends the token only to a node. `is_done` is whether the node has accepted the token."""

    def __init__(
        self, address: str, token: Token, wire: Wire, received: bytes, *, host: str, is_encrypted: bool
    ) -> None:
        """Takes the bytes `received` so far, with the framing "head" at least the hello, and the IP address `host` of
        the other side. Raises AuthenticationFailed if a token must not be sent over this connection."""
        if not is_encrypted and not is_this_machine(host):
            raise _failed(
                address,
                "unencrypted",
                "it is another machine, and the connection to it is not encrypted; nothing was sent",
            )
        self._address = address
        self._token = token
        self._wire = wire
        self._reader = FrameReader(wire, HERE)
        self.is_node = opens_as_node(received, wire) if wire.hello else True
        self.is_done = False
        self._early = received[len(wire.hello) :]

    def request(self) -> bytes:
        """Returns the bytes that carry the token. Raises NodeUnreachable if the token cannot be read at present."""
        try:
            payload = AUTHENTICATE.encode_request(AuthenticateRequest(1, self._token.read()))
        except TokenError as error:
            raise NodeUnreachable(f"cannot authenticate at {self._address}: {error}") from error
        message = Message((local("-"), NODE_AUTHENTICATE), (local("token"),), payload)
        return FrameWriter(self._wire).encode([message], _too_large)[1]

    def receive(self, data: bytes) -> None:
        """Processes received bytes, until `is_done`. Raises AuthenticationFailed if the node refuses the token, and
        NodeUnreachable if the other side answers something else."""
        data, self._early = self._early + data, b""
        try:
            messages = self._reader.feed(data)
            if messages:
                self._take(messages)
        except (RemoteProtocolError, ProtocolError) as error:
            raise NodeUnreachable(
                f"what {self._address} answers to a token is not what a node answers: {error}"
            ) from error

    def first_bytes(self) -> bytes:
        return self._wire.hello

    def silence(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"{self._address} does not answer to the token: it is overloaded, has ended the connection, or is of a "
            "version without tokens"
        )

    def _take(self, messages: list[Message]) -> None:
        answer = AUTHENTICATE.decode_response(messages[0].payload)
        if answer.status != TokenStatus.OK:
            try:
                kind = KINDS.get(TokenStatus(answer.status), "other")
            except ValueError:
                kind = "other"
            raise _failed(self._address, kind, answer.reason)
        # A node sends nothing but the answer before the first request.
        if len(messages) > 1 or self._reader.waiting_bytes:
            raise ProtocolError("more than the answer has come")
        self.is_done = True


def _failed(address: str, kind: str, reason: str) -> AuthenticationFailed:
    advice = f"; {ADVICE[kind]}" if kind in ADVICE else ""
    return AuthenticationFailed(f"the token is not accepted at {address}: {reason}{advice}", kind)


def _too_large(error: Exception) -> None:
    raise AssertionError("a token fits into every frame") from error
