"""DashboardPage: one request of a browser to the dashboard: its user, rights, form, and answer.

Sessions: the random cookie of a browser, the token with which its user signed in, and the secret of its forms. The
token is kept in memory only and judged again at each request, so a revoked token ends its sessions at once. The secret
belongs to the cookie, and a page of another web site cannot know it (CSRF)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from ockam.actors.message import Origin
from ockam.identity.authenticator import Authenticator
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from stream_client.arguments import StartLike
from stream_node.cli.values import UsageError, parse_start
from stream_node.doors.dashboard.rendering import link, render
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.guard import identify, judge_token, peer_of
from stream_node.doors.http.memory import read_small
from stream_node.doors.http.problems import Problem
from stream_node.fleet.worker_place import shares_shards
from stream_node.hosting.hosted import HOST

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


class Sessions:
    """The sessions of one node. A restart ends all of them.
    Invariant: there are at most SESSIONS_MAX, and at most SESSIONS_OF_ONE_MAX of one identity."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._key = secrets.token_bytes(32)
        self._signed_in: dict[str, _SignedIn] = {}

    async def open(self, call: HttpCall, now_s: float) -> DashboardPage:
        """Returns the page of a request, with its session. A request with the header Authorization is judged without
        its cookie."""
        request = call.request
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
        return DashboardPage(call, self, caller, session, is_new=is_new, is_signed_in=is_signed_in)

    def csrf(self, session: str) -> str:
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def seal(self, session: str, text: str) -> str:
        """Returns a proof that this node wrote the text for the session, so no other site can link to a false text."""
        return hmac.new(self._key, f"{session}\n{text}".encode(), hashlib.sha256).hexdigest()[:32]

    def check(self, session: str, sent: str) -> None:
        if not hmac.compare_digest(self.csrf(session).encode(), sent.encode()):
            raise Problem(403, "old-form", "this form is not of your session; load its page again, and send it again")

    async def sign_in(self, page: DashboardPage, token: str, now_s: float) -> str:
        """Judges a token. Returns the id of the new session. Raises Problem if the token is refused."""
        identity = (await judge_token(token, page.call.request, self._authenticator)).identity
        # The session gets a new id, so that a cookie that somebody else has put into the browser is worth nothing.
        self._signed_in.pop(page.session, None)
        session = secrets.token_urlsafe(32)
        own = [each for each, signed_in in self._signed_in.items() if signed_in.identity == identity]
        for each in own[: max(0, len(own) + 1 - SESSIONS_OF_ONE_MAX)]:
            del self._signed_in[each]
        while len(self._signed_in) >= SESSIONS_MAX:
            del self._signed_in[next(iter(self._signed_in))]
        self._signed_in[session] = _SignedIn(identity, token, now_s + LIFETIME_S)
        return session

    def sign_out(self, session: str) -> None:
        self._signed_in.pop(session, None)


def cookie_name(request: HTTPConnection) -> str:
    """Returns the name of the cookie, with the port: browsers send the cookies of a host to all its ports."""
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


FIELDS_MAX = 100
FORM_BYTES_MAX = 1024 * 1024
"""The size of the largest form: that of a message that is typed or pasted."""
COUNT_MAX = 2**63 - 1
"""The largest index or number in a query: the largest integer of the database."""
OPERATOR = Right.OPERATE | Right.ADMIN
"""A user with one of these rights on a name sees the state of what has the name; on `EVERY_NAME`, of the whole node."""
CLUSTER_RESOURCE = "cluster"


class DashboardPage:
    """One request of a browser. call: the request with the identity of the session.
    session: the id in its cookie, or a new one. is_new: whether the browser must be given the cookie.
    is_signed_in: whether the session has a token."""

    def __init__(
        self, call: HttpCall, sessions: Sessions, caller: Origin, session: str, *, is_new: bool, is_signed_in: bool
    ) -> None:
        self.call = call._replace(caller=caller)
        self.call.count_for(caller)
        self.session = session
        self.is_new = is_new
        self.is_signed_in = is_signed_in
        self.client = self.call.client
        self._sessions = sessions
        self._given: Mapping[str, str] = call.request.query_params
        self._asked: set[str] = set()

    @property
    def is_part(self) -> bool:
        return "hx-request" in self.call.request.headers

    # The query, or the form of a request that changes something.

    async def read_form(self) -> None:
        """Puts the fields of the form in the place of the query. Raises Problem if the form is not valid, or does not
        belong to this session."""
        try:
            body = (await read_small(self.call.request, FORM_BYTES_MAX)).decode()
            self._given = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as error:
            raise Problem(400, "invalid-request", f"this is no form: {error}") from error
        self._sessions.check(self.session, self.get("csrf"))

    def get(self, name: str, default: str = "") -> str:
        """Returns a parameter of the query, or a field of the form."""
        self._asked.add(name)
        return self._given.get(name, default)

    def whole(self, name: str) -> int:
        return number_of(self.get(name), name)

    def check_typed(self, name: str) -> None:
        """Raises Problem unless the user has typed this name again: the form destroys or moves its object."""
        if self.get("typed") != name or not name:
            raise Problem(400, "name-not-typed", "type the exact name to show that you mean it; nothing was changed")

    def count(self, name: str, default: int, most: int = COUNT_MAX) -> int:
        """Returns a whole number of the query, at most `most`. Raises Problem for any other text."""
        if not self.get(name).strip():
            return default
        number = self.whole(name)
        if number > COUNT_MAX:
            raise Problem(400, "invalid-request", f"{name} is {number}, and at most {COUNT_MAX} is possible")
        return min(number, most)

    def number(self, name: str, default: float = 0.0) -> float:
        try:
            return float(self.get(name, str(default)))
        except ValueError:
            raise Problem(400, "invalid-request", f"{name} must be a number") from None

    # Rights.

    def may(self, rights: Right, name: str | None = None) -> bool:
        """Whether the user has one of the rights, on a name or on any name. Nothing is counted or audited."""
        return self.call.may(Demand(rights, name))

    def need(self, rights: Right, name: str | None = None) -> None:
        """Raises Problem if the user has none of the rights. The refusal is counted and audited."""
        self.call.check(Demand(rights, name))

    def edges(self, rights: Right) -> list[str]:
        """Returns the sorted names at which the user's rights begin and end: the user has one of `rights` from the
        first name on, none from the second name on, and so on in turn."""
        authorizer = self.call.parts.authorizer
        return [""] if authorizer is None else authorizer.rules.grants(self.call.caller.identity).edges(rights)

    # Answers.

    def show(self, template: str, status: int = 200, **values: Any) -> Response:
        """Returns a page made of a template and its variables. Raises Problem if the query has a parameter that
        the page has not asked for."""
        done, identity = self.get("done"), self.call.caller.identity
        # Only a text that this node has written for this session is shown.
        seal = self._sessions.seal(self.session, done)
        if not hmac.compare_digest(seal.encode(), self.get("seal").encode()):
            done = ""
        # By now the page has asked for each parameter that it knows.
        unknown = next((name for name in self.call.request.query_params if name not in self._asked), None)
        if unknown is not None and status == 200:
            known = ", ".join(sorted(self._asked - {"done", "seal"})) or "none"
            detail = f"this page has no parameter {unknown[:40]!r}; those it has: {known}"
            raise Problem(400, "invalid-request", detail)
        url = self.call.request.url
        frame = {
            "page": self,
            "navigation": self._navigation,
            "csrf": self._sessions.csrf(self.session),
            "identity": identity,
            "is_anonymous": identity == ANONYMOUS,
            "here": url.path.removeprefix("/dashboard") + (f"?{url.query}" if url.query else ""),
            "done": done,
        }
        return render(template, frame | values, status, is_part=self.is_part)

    def go(self, path: str, **query: Any) -> Response:
        """Sends the browser to a page, after something was changed. query: with `done`, the change in words."""
        if "done" in query:
            query["seal"] = self._sessions.seal(self.session, str(query["done"]))
        return RedirectResponse(link(path, **query), 303)

    def _navigation(self) -> list[list[str]]:
        """Returns the key, the title and the path of each page that this node has and the user may see."""
        parts, sees_some, sees_all = self.call.parts, self.may(OPERATOR), self.may(OPERATOR, EVERY_NAME)
        has_cluster = shares_shards(parts.config) and self.may(Right.OPERATE, CLUSTER_RESOURCE)
        pages = (
            (True, "overview", "Overview", ""),
            (True, "streams", "Streams", "/streams"),
            (True, "consumers", "Consumers", "/consumers"),
            (parts.config.block_node, "blocks", "Blocks", "/blocks"),
            (has_cluster, "cluster", "Cluster", "/cluster"),
            (parts.services.mirrors.tasks.has_mirrors and sees_some, "mirrors", "Mirrors", "/mirrors"),
            (parts.node.is_registered(HOST) and sees_all, "own_workers", "Own workers", "/own-workers"),
            (sees_all, "connections", "Connections", "/connections"),
            (parts.config.export_folders and sees_all, "exports", "Exports", "/exports"),
            (parts.authorizer is not None and sees_some, "access", "Access", "/access"),
        )
        return [entry for is_shown, *entry in pages if is_shown]


def number_of(text: str, name: str) -> int:
    text = text.replace(",", "").strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        raise Problem(400, "invalid-request", f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def begin_of(text: str) -> StartLike:
    """Returns where reading begins: an index, a word, an age or a time. Raises Problem for any other text."""
    try:
        return parse_start(text.strip().replace(",", ""), datetime.now(UTC))
    except UsageError as error:
        raise Problem(400, "invalid-request", str(error)) from error


def show_problem(page: DashboardPage, problem: Problem) -> Response:
    template = "problem_part.html" if page.is_part else "problem.html"
    title = problem.name.replace("-", " ").capitalize()
    # If a part of a page has an error, the browser shows the error at the place of the part, also on each refresh.
    answer = page.show(template, problem.status, title=title, detail=problem.detail, code=problem.status)
    for name, value in problem.headers.items():
        if name.lower() != "www-authenticate":
            answer.headers[name] = value
    return answer
