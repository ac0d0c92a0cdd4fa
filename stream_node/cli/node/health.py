"""The commands `stream-node health` (asks over HTTP, as containers do) and `top` (shows a node live in the
terminal)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stream_node.cli.client import open_client, run_to_signal
from stream_node.cli.options import ANY_NODE, ConfigOption, NodeOptions
from stream_node.cli.output import AS_JSON, say, say_json
from stream_node.cli.request_options import NO_TLS, TlsOptions
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    import ssl

    from ockam.identity.tls import Tls
    from stream_node.node.config import Config
    from stream_node.top.reading import NodeReader, SortKey, TopView

ANSWER_BYTES_MAX = 64 * 1024
EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Hosts that stand for all addresses of a machine, each with one at which the machine itself reaches the node."""


def health(
    address: Annotated[
        str | None, typer.Argument(), "HOST:PORT", "Where the node listens for HTTP. Without it: as its settings say."
    ] = None,
    config: ConfigOption = None,
    live: Annotated[bool, "Ask whether the node lives, and not whether it is ready."] = False,
    timeout: Annotated[float, typer.Option(min=0.001), "SECONDS", "The longest wait for the answer."] = 5.0,
    tls_options: TlsOptions = NO_TLS,
) -> None:
    """Ask a node over HTTP whether it is ready for clients. The exit code is 1 if not, and 3 without an answer.

    Without HOST:PORT, the command reads the settings as `serve` does, takes the first address of `http`, and trusts the
    node's own certificate.

    Example: stream-node health 127.0.0.1:4080

    In a container, with the settings of the node: stream-node health --live
    """
    from ockam.identity.tls import new_client_context
    from stream_node.node.config_sources import load_config

    tls = tls_options.make()
    context = None if tls is None else new_client_context(tls)
    name = tls_options.tls_server_name
    if address is None:
        settings = load_config({}, file=config)
        if not settings.http:
            raise UsageError("the node's settings have no `http`; set it, or give the address of the node's HTTP")
        address = settings.http[0]
        if settings.tls_certificate is not None and tls_options.tls_ca is None:
            context = pinned_context(settings, tls)
    status, answer = ask(address, "/livez" if live else "/readyz", timeout, context, name)
    reasons = [str(each) for each in answer.get("reasons", [])]
    is_good = status == 200
    word = "live" if live else "ready"
    report = {"address": address, "asked": word, "ok": is_good, "reasons": reasons}
    lines = [word if is_good else f"not {word}: {'; '.join(reasons) or f'the node answered {status}'}"]
    say(report, lines)
    if not is_good:
        raise typer.Exit(1)


def ask(
    address: str, path: str, timeout_s: float, context: ssl.SSLContext | None, server_name: str | None
) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON object of an answer. Raises NodeUnreachable, InvalidAddress."""
    import http.client
    import socket

    from ockam.actors.address import split_host_port
    from stream_client.errors import NodeUnreachable

    host, port = split_host_port(address)
    host = EVERY_ADDRESS.get(host, host)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.sock = socket.create_connection((host, port), timeout_s)
        if context is not None:
            connection.sock = context.wrap_socket(connection.sock, server_hostname=server_name or host)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise NodeUnreachable(f"no answer over HTTP at {address}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    return response.status, answer if isinstance(answer, dict) else {}


def pinned_context(settings: Config, tls: Tls | None) -> ssl.SSLContext:
    """Returns the TLS context of a client on the node's own machine: it trusts only the certificate in the node's file,
    without authority and host name. tls: has the certificate of the client."""
    import ssl

    from ockam.identity.tls import Tls, new_client_context

    own = tls or Tls()
    context = new_client_context(Tls(ca=settings.tls_certificate, certificate=own.certificate, key=own.key))
    context.check_hostname = False
    # Without this flag, a certificate that an authority has signed is trusted only with that authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


PIPE_COLUMNS = 120
"""The width of the text of --once if stdout is no terminal and COLUMNS does not set another one."""


def top(
    prefix: Annotated[str, "Only streams whose names begin with this text."] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=3600.0), "SECONDS", "The time between two readings."] = 2.0,
    sort: Annotated[
        Literal["rate", "lag", "size", "messages", "name"], "The order of the rows, largest first."
    ] = "rate",
    once: Annotated[bool, "Print one view, after one interval, and exit."] = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Show the rates, commit times, streams, consumers with their lag, and blocks of a node, live in the terminal.

    q ends it, and s changes the order. With --json it prints one object for each interval, until it is stopped.

    Example: stream-node top --sort lag

    For a script: stream-node top --once --json
    """
    if not (once or AS_JSON.get()) and not sys.stdout.isatty():
        raise UsageError("stdout is no terminal; use --once for one view as text, or --json")
    target = node.target()
    address = (target.address, *target.via)[-1]

    async def main() -> None:
        from stream_node.top.reading import NodeReader

        # The client connects again by itself, and a view says that the node is gone.
        async with open_client(target, lambda _: None) as client:
            reader = NodeReader(client, prefix)
            if once or AS_JSON.get():
                await _print(reader, address, sort, interval, once)
            else:
                from rich.console import Console

                from stream_node.top.screen import LiveTop

                await LiveTop(reader, address, interval, sort, Console()).run()

    run_to_signal(main)


async def _print(reader: NodeReader, node: str, sort: SortKey, interval_s: float, once: bool) -> None:
    import msgspec
    import trio

    from stream_node.top.reading import make_view

    before = await reader.read()
    while True:
        await trio.sleep(interval_s)
        now = await reader.read()
        view = make_view(before, now, sort)
        if AS_JSON.get():
            say_json({"node": node, **msgspec.to_builtins(view)})
        else:
            _print_text(view, node, sort)
        if once:
            return
        before = now


def _print_text(view: TopView, node: str, sort: str) -> None:
    import os

    from rich.console import Console

    from stream_node.top.screen import draw

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    console = Console(width=width)
    console.print(draw(view, node, sort, console.width, None))
