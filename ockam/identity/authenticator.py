"""Authenticator: judges the tokens that peers send first on their connections, and delays the answers to refused ones.
OutgoingTokens: the tokens of a node for other nodes."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog
import trio

from ockam.actors.address import Address, local
from ockam.actors.message import Message, reply_to
from ockam.actors.worker import Worker
from ockam.errors import ConnectFailed
from ockam.identity.authentication import (
    AUTHENTICATE,
    NODE_AUTHENTICATE,
    AuthenticateAnswer,
    AuthenticateRequest,
    TokenStatus,
    TokenVerdict,
)
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.token import Token, TokenError, is_this_machine
from ockam.protocol import ProtocolError
from ockam.quotas.usage import party_key

REQUEST_BYTES_MAX = 512
"""The largest payload that is decoded; a real one has about 100 bytes. A larger one gets no answer."""
WAITING_MAX = 16
"""The most refused connections of one host that wait for their answer. Further ones are closed without an answer."""

ANSWERS = local("node_authenticated")
OPEN_MAX = 1_000
"""The most unanswered authentications of this node that are remembered. The oldest are forgotten first."""

NO_AUTHENTICATION = "this is no authentication with a token (docs/wire.md)"
TOO_LARGE = f"the payload of the authentication is larger than {REQUEST_BYTES_MAX} bytes"

logger = structlog.get_logger(__name__)


class Proof(NamedTuple):
    """The result of an authentication. answer: None if the payload is too large to be answered."""

    verdict: TokenVerdict
    answer: Message | None


class Authenticator:
    """Judges the tokens of all connections of a node. `judge` is for AUTHENTICATE, `judge_text` for other protocols.

    Invariant: for each host, at most `waiting_max` refused connections wait for their answer."""

    def __init__(
        self,
        find: Callable[[str], TokenVerdict],
        on_refused: Callable[[str, Identity, TokenVerdict], None] = lambda peer, known, verdict: None,
        *,
        refusal_delay_s: float = 0.0,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """find: returns the verdict on a token. on_refused: called with the peer, its identity and the verdict, before
        the answer.
        refusal_delay_s: the seconds between a refused token and the answer, against peers that try again."""
        self._find = find
        # Callers use this for a refusal without an answer. `refuse` itself reports a refusal that it delays.
        self.report = on_refused
        self._refusal_delay_s = refusal_delay_s
        self._waiting_max = waiting_max
        self._waiting: Counter[str] = Counter()

    def judge(self, message: Message, peer: str, known: Identity, is_encrypted: bool) -> Proof:
        """Judges the first message of a connection. Before a refusal is answered, the caller must call `refuse`.

        peer: its `host:port`. known: its identity without a token. is_encrypted: whether the connection uses TLS."""
        # A large payload is not decoded: before it has proved anything, a peer must cost little.
        if len(message.payload) > REQUEST_BYTES_MAX:
            return Proof(TokenVerdict(TokenStatus.UNKNOWN, reason=TOO_LARGE), None)
        try:
            request = AUTHENTICATE.decode_request(message.payload)
        except ProtocolError:
            request_id, verdict = 0, TokenVerdict(TokenStatus.UNKNOWN, reason=NO_AUTHENTICATION)
        else:
            request_id, verdict = request.request_id, self._judge(request.token, peer, known, is_encrypted)
        return Proof(verdict, reply_to(message, NODE_AUTHENTICATE, _answer(request_id, verdict)))

    async def judge_text(self, text: str, peer: str, known: Identity, is_encrypted: bool) -> TokenVerdict | None:
        """Judges a token that came in another protocol, such as HTTP. Waits before it refuses the token. Parameters as
        for `judge`. Returns None if too many refusals to this host wait already."""
        verdict = self._judge(text, peer, known, is_encrypted)
        if verdict.identity is None and not await self.refuse(peer, known, verdict):
            return None
        return verdict

    async def refuse(self, peer: str, known: Identity, verdict: TokenVerdict) -> bool:
        """Reports a refusal and waits. Returns False at once if too many refusals to this host wait; the connection is
        then closed without an answer. During the wait, the caller must retain nothing that the peer has sent: many
        refusals can wait, and a frame can have 16 MiB."""
        # A host can have all addresses of its IPv6 network.
        key = party_key(ANONYMOUS, peer)
        if self._waiting[key] >= self._waiting_max:
            return False
        self.report(peer, known, verdict)
        self._waiting[key] += 1
        try:
            await trio.sleep(self._refusal_delay_s)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return True

    def _judge(self, text: str, peer: str, known: Identity, is_encrypted: bool) -> TokenVerdict:
        # A token that others may have read is not judged at all: the answer must not tell them whether it is valid.
        if not is_encrypted and not is_this_machine(peer.rpartition(":")[0]):
            reason = (
                "a token is taken over TLS only, except from the same machine; the token went over the network without "
                "encryption, so revoke it, make a new one, and connect with TLS"
            )
            return TokenVerdict(TokenStatus.UNENCRYPTED, reason=reason)
        if known.source != "anonymous":
            reason = (
                f"this connection is {known} already, by its certificate; a connection has one identity, so leave out "
                "the token or the certificate"
            )
            return TokenVerdict(TokenStatus.SECOND, reason=reason)
        return self._find(text)


class LateAuthentication(Worker):
    """Answers authentications that do not come first on their connection, or do not come directly over a connection."""

    def handle(self, message: Message) -> None:
        try:
            request_id = AUTHENTICATE.decode_request(message.payload[:REQUEST_BYTES_MAX]).request_id
        except ProtocolError:
            request_id = 0
        reason = "an authentication must be the first message of a connection to the node itself; connect again"
        self.reply(message, _answer(request_id, TokenVerdict(TokenStatus.LATE, reason=reason)))


def _answer(request_id: int, verdict: TokenVerdict) -> bytes:
    identity = "" if verdict.identity is None else str(verdict.identity)
    return AUTHENTICATE.encode_response(AuthenticateAnswer(request_id, verdict.status, identity, verdict.reason))


class OutgoingTokens:
    """The tokens for destinations (`host:port`), and at most OPEN_MAX authentications without an answer.

    The tokens are not sent on connections for forwarded messages. Otherwise the senders of these messages would act in
    the name of the node."""

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
