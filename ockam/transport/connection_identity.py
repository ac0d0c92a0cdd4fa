"""ConnectionIdentity: the identity of the peer on one connection. It reads and sends nothing."""

from __future__ import annotations

from ockam.actors.message import Message
from ockam.identity.authenticator import Authenticator, Proof
from ockam.identity.identity import Identity
from ockam.identity.tls_layer import TlsLayer, identity_of


class ConnectionIdentity:
    def __init__(
        self, peer: str, *, proved: Identity | None, authenticator: Authenticator | None, takes_certificate: bool
    ) -> None:
        """proved: the identity that the peer has proved already, for example over HTTP; None: none yet.
        authenticator: judges the token of the peer; None if this peer sends no token.
        takes_certificate: whether the peer's certificate proves a name. The certificate of a node that we called does
        not, because the names of servers come from other authorities."""
        self._peer = peer
        self._proved = proved
        self._authenticator = authenticator
        self._takes_certificate = takes_certificate
        self.refused: Proof | None = None

    def find(self, tls: TlsLayer | None) -> Identity:
        return self._proved or identity_of(tls.certificate if tls is not None and self._takes_certificate else None)

    def take_token(self, first: Message, tls: TlsLayer | None) -> Proof | None:
        """Judges the token in the peer's first message; None without a token. After a refusal, call `delay_refusal`."""
        if self._authenticator is None or not self._authenticator.is_meant(first):
            return None
        # `find` gives the identity by certificate: a peer that has one is refused, since a connection has one identity.
        proof = self._authenticator.judge(first, self._peer, self.find(tls), tls is not None)
        if proof.verdict.identity is None:
            # Nothing more is read from this connection. It ends after `delay_refusal` and the answer.
            self.refused = proof
        else:
            self._proved = proof.verdict.identity
        return proof

    async def delay_refusal(self, tls: TlsLayer | None) -> str | None:
        """Reports the refused token, and waits until the refusal may be sent. Returns None, or a word for counters if
        the peer must get no answer."""
        refused, authenticator = self.refused, self._authenticator
        assert refused is not None, "no token was refused"
        assert authenticator is not None, "only an authenticator refuses a token"
        known = self.find(tls)
        # A payload that is too large gets no answer. The refusal is reported all the same.
        if refused.answer is None:
            authenticator.report(self._peer, known, refused.verdict)
            return "token_too_large"
        return None if await authenticator.refuse(self._peer, known, refused.verdict) else "token_flood"
