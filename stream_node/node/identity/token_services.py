"""The tokens of a running node: reads their file again, and ends the connections of tokens that are not valid any more.
`ockam.identity.rules.tokens` decides whether a token is valid; `ockam.identity.authentication` exchanges the
messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
import trio

from ockam.actors.address import split_host_port
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.errors import InvalidAddress
from ockam.files.durable_files import state_of
from ockam.identity import authenticator
from ockam.identity.authentication import NODE_AUTHENTICATE, TokenStatus, TokenVerdict
from ockam.identity.identity import Identity
from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.identity.rules.tokens import TokenFileError, Tokens, load_tokens
from ockam.identity.token import Token, TokenError, hide_tokens
from stream_node.node.config import Config, ConfigError

TOKEN_FILE = "tokens.json"
INTERVAL_S = 0.5
"""The interval between two checks of the file and of expired tokens."""
REFUSAL_DELAY_S_MAX = 5.0
"""The longest delay of the answer to a refused token. Clients wait 10 s for an answer."""
ENDED = "token_ended"
"""The reason, for counters, why connections are closed if their token was revoked or replaced, or has expired."""

Closer = Callable[[Callable[[Identity], bool], str], int]
"""Ends the connections or channels of the identities for which the first argument returns true.
Returns their number. The second argument is the reason, for counters."""

logger = structlog.get_logger(__name__)


def make_outgoing_tokens(config: Config) -> authenticator.OutgoingTokens:
    tokens, mistakes = {}, []
    for text in config.forward_tokens:
        destination, equals, file = text.partition("=")
        try:
            if not equals or not file:
                raise TokenError("write it as HOST:PORT=FILE")
            split_host_port(destination)
            tokens[destination] = Token(file=file)
            tokens[destination].read()
        except (InvalidAddress, TokenError) as error:
            mistakes.append(f"forward_tokens: {hide_tokens(text[:200])!r}: {error}")
    if mistakes:
        raise ConfigError(*mistakes)
    return authenticator.OutgoingTokens(tokens)


def token_file(data_dir: str) -> Path:
    return Path(data_dir) / TOKEN_FILE


class _Open:
    """Lets every peer send to the workers of this kind: late authentications, and answers of other nodes to tokens."""

    def demand(self, message: Message) -> Demand:
        return NOTHING


class _Late(_Open, authenticator.LateAuthentication): ...


class _Answers(_Open, authenticator.AuthenticationAnswers): ...


class NodeTokens:
    """The tokens of one node while it runs. If their file is not valid, no token is accepted.
    If the file cannot be read now, the earlier tokens stay valid. Both are logged as errors. authenticator: checks the
    tokens of connections. outgoing: this node's tokens for others."""

    def __init__(self, config: Config) -> None:
        """`start` reads the file of the tokens. Raises ConfigError if a token for another node cannot be read."""
        self._file = token_file(config.data_dir)
        self._tokens = Tokens()
        self._seen: tuple[int, ...] | None = None
        self._trouble = ""
        self._audit: Audit | None = None
        self.authenticator = authenticator.Authenticator(
            lambda text: self._tokens.judge(text, time.time()),
            self._note_refusal,
            refusal_delay_s=min(config.error_delay_s, REFUSAL_DELAY_S_MAX),
        )
        self.outgoing = make_outgoing_tokens(config)

    def start(self, node: Node, close_identities: Closer, nursery: trio.Nursery, audit: Audit | None) -> None:
        """Reads the file, and watches it until the nursery is cancelled. audit: None without rules."""
        self._audit = audit
        node.register([NODE_AUTHENTICATE], _Late)
        if self.outgoing:
            node.register([authenticator.ANSWERS], lambda: _Answers(self.outgoing))
        self._refresh()
        nursery.start_soon(self._watch, close_identities)

    async def _watch(self, close_identities: Closer) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            before = self._tokens
            self._refresh()
            if not before and not self._tokens:
                continue
            closed = close_identities(partial(self._has_ended, before, time.time()), ENDED)
            if closed:
                logger.info("tokens_ended", connections_closed=closed)

    def _has_ended(self, before: Tokens, now_s: float, identity: Identity) -> bool:
        """Whether the token of an identity was revoked, replaced or has expired, so that its connections end."""
        if identity.source != "token":
            return False
        # A token that was replaced has another hash, and the connections of the old one end.
        is_same = before.valid.get(identity.name) == self._tokens.valid.get(identity.name)
        return not (is_same and self._tokens.is_valid(identity, now_s))

    def _refresh(self) -> None:
        seen = state_of(self._file)
        if seen == self._seen:
            return
        try:
            tokens = Tokens(load_tokens(self._file))
        except OSError as error:
            # The next sample tries again, so the same trouble is logged once.
            reason = error.strerror or str(error)
            if reason != self._trouble:
                logger.error("tokens_not_read", file=str(self._file), reason=reason, in_force=len(self._tokens))
            self._trouble = reason
            return
        except TokenFileError as error:
            logger.error("tokens_not_valid", reason=str(error), in_force="no token")
            tokens = Tokens()
        self._trouble = ""
        is_first, self._seen = self._seen is None, seen
        gone, new = self._tokens.valid.keys() - tokens.valid.keys(), tokens.valid.keys() - self._tokens.valid.keys()
        self._tokens = tokens
        if not is_first or tokens:
            logger.info("tokens_loaded", tokens=len(tokens), new=len(new), gone=len(gone))
            if self._audit is not None:
                reason = f"{len(tokens)} tokens; {len(new)} new, {len(gone)} gone"
                self._audit.note(Entry("tokens_loaded", reason=reason))

    def _note_refusal(self, peer: str, known: Identity, verdict: TokenVerdict) -> None:
        if self._audit is not None:
            reason = f"{TokenStatus(verdict.status).name.lower()}: {verdict.reason}"
            self._audit.refused(Entry("token_refused", str(known), peer, reason=reason))
