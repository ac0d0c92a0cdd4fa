"""Dashboard: the pages of one node, and the tasks that watch its rates, its troubles and its trends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias
from urllib.parse import urlsplit

import structlog
import trio
from starlette.responses import RedirectResponse, Response

from block_node.persist.mark import STREAM_PREFIX
from stream_client import ClientError
from stream_node.care.trouble import CurrentTroubles, Trouble
from stream_node.doors.dashboard import access_page, blocks, messages, streams
from stream_node.doors.dashboard.history import INTERVAL_S, StreamRates, take_sample
from stream_node.doors.dashboard.overview import READING_PAUSES, Overview, Trends, listed
from stream_node.doors.dashboard.page import PATH, DashboardPage, Sessions, set_cookie, show_problem
from stream_node.doors.dashboard.rendering import ASSETS
from stream_node.doors.http.app import Endpoint, HttpCall
from stream_node.doors.http.problems import Problem, problem_of
from stream_node.node.parts import NodeParts
from stream_storage.errors import StorageError

KEEP_S = 31_536_000
"""How long browsers keep static files. The address of a file changes with its content."""

PageFunction: TypeAlias = Callable[[DashboardPage], Awaitable[Response]]
logger = structlog.get_logger(__name__)


class Dashboard:
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._sessions = Sessions(parts.authenticator)
        self._rates = StreamRates()
        self._trends = Trends()
        rates = self._rates.known
        self._overview = Overview(parts)
        self.find_troubles = self._overview.troubles
        self.watch_trends = partial(self._trends.watch, parts.runner)
        pages: tuple[tuple[str, str, PageFunction], ...] = (
            ("GET", "", self._overview.page),
            ("GET", "/rates", self._overview.rates),
            ("GET", "/stream/rates", self._trends.send_stream),
            ("GET", "/consumer/rates", self._trends.send_consumer),
            ("GET", "/streams", partial(streams.show_all, rates)),
            ("POST", "/streams", streams.create),
            ("GET", "/stream", partial(streams.show, rates)),
            ("POST", "/stream/retention", streams.set_retention),
            ("POST", "/stream/truncate", streams.truncate),
            ("POST", "/stream/delete", streams.delete),
            ("POST", "/push", streams.push),
            ("GET", "/messages", messages.show_messages),
            ("GET", "/messages/next", messages.show_next),
            ("GET", "/messages/file", messages.save_messages),
            ("GET", "/message", messages.show_message),
            ("GET", "/message/raw", messages.send_raw),
            ("GET", "/forks", blocks.show_forks),
            ("GET", "/consumers", streams.show_consumers),
            ("GET", "/consumer", streams.show_consumer),
            ("POST", "/consumer/preview", streams.preview_position),
            ("POST", "/consumer/position", streams.change_position),
            ("POST", "/consumer/forget", streams.forget_consumer),
            ("GET", "/connections", access_page.show_connections),
            ("POST", "/connections/close", access_page.close),
            ("GET", "/blocks", blocks.show_blocks),
            ("GET", "/cluster", access_page.show_cluster),
            ("POST", "/cluster/drain", access_page.drain),
            ("GET", "/mirrors", access_page.show_mirrors),
            ("POST", "/mirrors/promote", access_page.promote),
            ("POST", "/mirrors/remove", access_page.remove),
            ("GET", "/own-workers", access_page.show_own_workers),
            ("GET", "/exports", access_page.show_exports),
            ("GET", "/export", access_page.show_export),
            ("GET", "/export/run", access_page.show_run),
            ("GET", "/access", access_page.show_access),
            ("GET", "/sign-in", self._show_sign_in),
            ("POST", "/sign-in", self._sign_in),
            ("POST", "/sign-out", self._sign_out),
            ("GET", "/{path:path}", show_nothing),
        )
        # A page gives its request the identity of the browser's session, and shows errors as pages.
        self.endpoints: tuple[Endpoint, ...] = (
            *(Endpoint("GET", path, lead_here, is_open=True) for path in ("/", PATH + "/")),
            Endpoint("GET", PATH + "/static/{name:path}", serve_asset, is_open=True),
            *(Endpoint(method, PATH + path, partial(self._answer, page), is_open=True) for method, path, page in pages),
        )

    async def watch_troubles(self) -> None:
        """Learns the habits of consumers, and logs when troubles begin and end. Runs without end."""
        known: dict[tuple[str, ...], Trouble] = {}
        reading_s = 0.0
        while True:
            # The first pause also lets a node that has just started measure its disk. With many consumers reading takes
            # long, so the pauses grow with it.
            await trio.sleep(max(INTERVAL_S, READING_PAUSES * reading_s))
            began_s = trio.current_time()
            try:
                troubles = await self.find_troubles()
            # Python raises RuntimeError if the system has no room for one more thread.
            except RuntimeError as error:
                logger.error("troubles_not_found", reason=str(error))
                continue
            # The stop of the node is in the log already, as `draining` and `stopped`.
            told = (each for same in troubles.by_kind.values() for each in same if each.kind != "stopping")
            before, known = known, {(each.kind, *each.subject): each for each in told}
            # Of many troubles of a kind, the log names the first ones and counts the others, as the page does.
            for each in listed(CurrentTroubles(each for key, each in known.items() if key not in before)):
                subject = "@".join(each.subject)
                logger.warning("trouble_began", kind=each.kind, subject=subject, reason=each.title, do=each.remedy)
            for each in listed(CurrentTroubles(each for key, each in before.items() if key not in known)):
                logger.info("trouble_ended", kind=each.kind, subject="@".join(each.subject), was=each.title)
            reading_s = trio.current_time() - began_s

    async def watch(self) -> None:
        """Takes samples of the rates, of silent streams and publishers, and of mirrors. Runs without end."""
        services, acknowledged = self._parts.services, self._parts.services.acknowledged_blocks
        overview = self._overview
        while True:
            overview.history.add(take_sample(self._parts, time.time()))
            before, acknowledged = acknowledged, services.acknowledged_blocks
            overview.block_silence.look([""] if acknowledged != before else [], (), trio.current_time())
            overview.mirrors.look(services.mirrors.tasks.states(), trio.current_time())
            growth, closed = services.directory.counters.take_growth()
            # The silence of a chain is reported once, as that of its blocks.
            grown = [name for name in growth if not name.startswith(STREAM_PREFIX)]
            overview.silence.look(grown, closed, trio.current_time())
            self._rates.look(growth, trio.current_time())
            await trio.sleep(INTERVAL_S)

    async def _answer(self, function: PageFunction, call: HttpCall) -> Response:
        page = await self._sessions.open(call, trio.current_time())
        try:
            if call.endpoint.method == "POST":
                await page.read_form()
            response = await function(page)
        except Problem as problem:
            response = show_problem(page, problem)
        except ClientError as error:
            response = show_problem(page, problem_of(error))
        except StorageError as error:
            logger.error("dashboard_not_read", reason=str(error))
            detail = f"the database could not be read: {error}; look at the log"
            response = show_problem(page, Problem(503, "node-failed", detail))
        if page.is_new and "set-cookie" not in response.headers:
            set_cookie(response, call.request, page.session)
        return response

    async def _show_sign_in(self, page: DashboardPage) -> Response:
        return page.show("sign_in.html", refusal="", target=_local(page.get("to")))

    async def _sign_in(self, page: DashboardPage) -> Response:
        target = _local(page.get("to"))
        try:
            session = await self._sessions.sign_in(page, page.get("token").strip(), trio.current_time())
        except Problem as problem:
            return page.show("sign_in.html", problem.status, refusal=problem.detail, target=target)
        response = RedirectResponse(PATH + target, 303)
        set_cookie(response, page.call.request, session)
        return response

    async def _sign_out(self, page: DashboardPage) -> Response:
        self._sessions.sign_out(page.session)
        return page.go("/sign-in", done="You have signed out.")


def _local(target: str) -> str:
    """Returns the page of the dashboard to show after the sign-in: the overview in place of another site's address."""
    parts = urlsplit(target)
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return target if is_local and not any(character < " " for character in target) else ""


async def lead_here(call: HttpCall) -> Response:
    return RedirectResponse(PATH, 303)


async def show_nothing(page: DashboardPage) -> Response:
    raise Problem(404, "no-such-page", f"the dashboard has no page {page.call.request.url.path[:200]}")


async def serve_asset(call: HttpCall) -> Response:
    """Answers with a static file. Static files contain no secrets, so everybody may read them."""
    name = call.request.path_params["name"]
    if name not in ASSETS:
        raise Problem(404, "no-such-path", "there is no such file")
    content, media_type = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": f"public, max-age={KEEP_S}, immutable"})
