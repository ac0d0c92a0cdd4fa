"""The command `stream-node health`: asks a node over HTTP whether it is ready, as containers do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.options import NO_TLS, RUNS, ConfigOption, TlsOptions
from stream_node.cli.output import say
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    import http.client
    import socket
    import ssl

    from ockam.actors.address import split_host_port
    from ockam.identity.tls import Tls, new_client_context
    from stream_client.errors import NodeUnreachable
    from stream_node.node.config_sources import load_config

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
    tls = tls_options.make()
    context = None if tls is None else new_client_context(tls)
    name = tls_options.tls_server_name
    if address is None:
        settings = load_config({}, file=config)
        if not settings.http:
            raise UsageError("the node's settings have no `http`; set it, or give the address of the node's HTTP")
        address = settings.http[0]
        if settings.tls_certificate is not None and tls_options.tls_ca is None:
            # On the node's own machine, only the certificate in its file is trusted, without authority and host name.
            own = tls or Tls()
            context = new_client_context(Tls(ca=settings.tls_certificate, certificate=own.certificate, key=own.key))
            context.check_hostname = False
            # Without this flag, a certificate that an authority has signed is trusted only with that authority.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    status, answer = ask(address, "/livez" if live else "/readyz", timeout, context, name)
    reasons = [str(each) for each in answer.get("reasons", [])]
    is_good = status == 200
    word = "live" if live else "ready"
    report = {"address": address, "asked": word, "ok": is_good, "reasons": reasons}
    say(report, word if is_good else f"not {word}: {'; '.join(reasons) or f'the node answered {status}'}")
    if not is_good:
        raise typer.Exit(1)


def ask(
    address: str, path: str, timeout_s: float, context: ssl.SSLContext | None, server_name: str | None
) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON object of an answer. Raises NodeUnreachable, InvalidAddress."""
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
