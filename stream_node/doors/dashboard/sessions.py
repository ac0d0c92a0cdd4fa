"""Sessions: the random cookie of a browser, the token with which its user signed in, and the secret of its forms.
The token is kept in memory only and judged again at each request, so a revoked token ends its sessions at once. The
secret belongs to the cookie, and a page of another web site cannot know it (CSRF)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ockam.identity.authenticator import Authenticator
from ockam.identity.identity import Identity
from stream_node.doors.http.identity import HttpCaller, identify, judge_token, peer_of
from stream_node.doors.http.problems import Problem

PATH = "/dashboard"
LIFETIME_S = 12 * 3600
SESSIONS_MAX = 1_000
"""The largest number of sessions. The oldest one ends when there are more."""
SESSIONS_OF_ONE_MAX = 20
"""The largest number of sessions of one identity, so that nobody can end the sessions of everybody else."""
_ID = re.compile("[A-Za-z0-9_-]{43}")


class _SignedIn(NamedTuple):
    identity: Identity
    token: str
    until_s: float


class Visit(NamedTuple):
    """One request of a browser. session: the id in its cookie, or a new one. csrf: the secret of its forms.
    is_new: whether the browser must be given the cookie. is_signed_in: whether the session has a token."""

    caller: HttpCaller
    session: str
    csrf: str
    is_new: bool
    is_signed_in: bool


class Sessions:
    """The sessions of one node. A restart ends all of them.
    Invariant: there are at most SESSIONS_MAX, and at most SESSIONS_OF_ONE_MAX of one identity."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._key = secrets.token_bytes(32)
        self._signed_in: dict[str, _SignedIn] = {}

    async def visit(self, request: HTTPConnection, now_s: float) -> Visit:
        """Returns the session of a request. A request with the header Authorization is judged without its cookie."""
        sent = request.cookies.get(cookie_name(request), "")
        is_new = not _ID.fullmatch(sent)
        session = secrets.token_urlsafe(32) if is_new else sent
        found = self._signed_in.get(session)
        caller = await identify(request, self._authenticator)
        is_signed_in = found is not None and "authorization" not in request.headers
        if is_signed_in and found is not None:
            try:
                if now_s >= found.until_s:
                    raise Problem(401, "unauthorized", "the session has ended")
                caller = await judge_token(found.token, request, self._authenticator)
            except Problem:
                # The token was revoked or has expired: the browser is asked to sign in again.
                # Another request of this browser may have removed the session meanwhile.
                self._signed_in.pop(session, None)
                is_signed_in = False
        return Visit(caller, session, self.csrf(session), is_new, is_signed_in)

    def csrf(self, session: str) -> str:
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def seal(self, session: str, text: str) -> str:
        """Returns a proof that this node wrote the text for the session, so nobody can link to another text."""
        return hmac.new(self._key, f"{session}\n{text}".encode(), hashlib.sha256).hexdigest()[:32]

    def check(self, visit: Visit, sent: str) -> None:
        if not hmac.compare_digest(visit.csrf.encode(), sent.encode()):
            raise Problem(403, "old-form", "this form is not of your session; load its page again, and send it again")

    async def sign_in(self, request: HTTPConnection, visit: Visit, token: str, now_s: float) -> str:
        """Judges a token. Returns the id of the new session. Raises Problem if the token is refused."""
        identity = (await judge_token(token, request, self._authenticator)).identity
        # A new id, so that a cookie that somebody else has put into the browser is worth nothing.
        self._signed_in.pop(visit.session, None)
        session = secrets.token_urlsafe(32)
        own = [each for each, signed_in in self._signed_in.items() if signed_in.identity == identity]
        for each in own[: max(0, len(own) + 1 - SESSIONS_OF_ONE_MAX)]:
            del self._signed_in[each]
        while len(self._signed_in) >= SESSIONS_MAX:
            del self._signed_in[next(iter(self._signed_in))]
        self._signed_in[session] = _SignedIn(identity, token, now_s + LIFETIME_S)
        return session

    def sign_out(self, visit: Visit) -> None:
        self._signed_in.pop(visit.session, None)


def cookie_name(request: HTTPConnection) -> str:
    """Browsers send the cookies of one host to all its ports, so the name of the cookie has the port."""
    return f"stream-node-{request.url.port or request.url.scheme}"


def set_cookie(response: Response, request: HTTPConnection, session: str) -> None:
    response.set_cookie(
        cookie_name(request),
        session,
        max_age=LIFETIME_S,
        path=PATH,
        secure=peer_of(request).is_encrypted,
        httponly=True,
        samesite="strict",
    )
