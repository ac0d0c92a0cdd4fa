"""OutgoingTokens: the tokens by which a node proves its own name to other nodes.

The tokens are not sent on connections for forwarded messages. Otherwise the senders of these messages would act in the
name of the node."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import structlog

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.errors import ConnectFailed
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest, TokenStatus
from ockam.identity.token import Token, TokenError, is_this_machine
from ockam.protocol import ProtocolError

ANSWERS = local("node_authenticated")
OPEN_MAX = 1_000
"""The most unanswered authentications that are remembered. The oldest are forgotten first."""

logger = structlog.get_logger(__name__)


class OutgoingTokens:
    """The tokens for destinations (`host:port`), and at most OPEN_MAX authentications without an answer."""

    def __init__(self, tokens: Mapping[str, Token] | None = None) -> None:
        self._tokens = dict(tokens or {})
        self._open: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def has(self, destination: str) -> bool:
        return destination in self._tokens

    def check_way(self, destination: str, host: str, is_encrypted: bool) -> None:
        """Raises ConnectFailed if others could read a token on its way. host: the IP address of the other node."""
        if not is_encrypted and not is_this_machine(host):
            raise ConnectFailed(
                f"the token for {destination} is not sent: it is another machine, and the connection to it is not "
                "encrypted; set tls_forward_ca"
            )

    def authentication(self, destination: str, connection: Address) -> Message:
        """Returns the first message of a connection. Raises ConnectFailed if the token cannot be read."""
        try:
            token = self._tokens[destination].read()
        except TokenError as error:
            raise ConnectFailed(f"cannot authenticate at {destination}: {error}") from error
        # An answer counts only if its id is known, so that nobody else can write the log lines of `answered`.
        request_id = secrets.randbits(60)
        self._open[request_id] = destination
        if len(self._open) > OPEN_MAX:
            del self._open[next(iter(self._open))]
        payload = AUTHENTICATE.encode_request(AuthenticateRequest(request_id, token))
        return Message((connection, NODE_AUTHENTICATE), (ANSWERS,), payload)

    def answered(self, payload: bytes) -> None:
        try:
            answer = AUTHENTICATE.decode_response(payload)
        except ProtocolError:
            return
        destination = self._open.pop(answer.request_id, None)
        if destination is not None and answer.status != TokenStatus.OK:
            logger.error("token_not_accepted", destination=destination, reason=answer.reason)


class AuthenticationAnswers(Worker):
    def __init__(self, tokens: OutgoingTokens) -> None:
        self._tokens = tokens

    def handle(self, message: Message) -> None:
        self._tokens.answered(message.payload)
