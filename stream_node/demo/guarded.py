"""The part of the demo with security: a node with mutual TLS and rules, two clients with rights, and three intruders.

1. Make an authority, and certificates for the node and for three clients. Write the rules of two of the clients.
2. Start a node with them. `publisher` pushes text, and `reader` reads it.
3. The intruders try: `reader` pushes, `eve` (whose certificate no rule names) reads, and a client without a certificate
   connects.
4. Check that `reader` got every message, that each intruder was refused, and that the audit log has each refusal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from ockam.identity.rules.rule_file import add_rule, make_rule
from stream_client import AccessDenied, Tls, TlsFailed, connect
from stream_node.care.certificates import create_authority, create_certificate
from stream_node.demo.proof import DemoFailed
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.identity.access import AUDIT_FILE
from stream_node.node.process import NodeProcess

STREAM = "secret.lines"
MESSAGES_MAX = 2_000
PATIENCE_S = 30.0
RULES = (("publisher", ("create", "write")), ("reader", ("read", "index")))


class GuardedProof(msgspec.Struct, frozen=True):
    """The result of this part. refused: the refused attempts, with reasons. audited: their lines in the audit log.
    broken: a text for each broken promise."""

    messages: int
    size_bytes: int
    read: int
    refused: tuple[str, ...]
    audited: int
    seconds: float
    broken: tuple[str, ...]


def run_guarded(directory: Path, lines: Sequence[bytes]) -> GuardedProof:
    """Runs this part in the folder, with the first MESSAGES_MAX lines. Raises DemoFailed if it takes too long."""
    lines = lines[:MESSAGES_MAX]
    started_s = time.monotonic()
    keys, rules, data_dir = directory / "keys", directory / "access.toml", directory / "guarded"
    # The keys, and rules for two of the three clients.
    ca = create_authority(keys)
    node_certificate = create_certificate(keys, "node", hosts=("localhost", "127.0.0.1"))
    certificates = {name: create_certificate(keys, name) for name in ("publisher", "reader", "eve")}
    clients = {
        name: Tls(ca=str(ca), certificate=str(each), key=str(each.with_suffix(".key")))
        for name, each in certificates.items()
    }
    for name, may in RULES:
        add_rule(rules, make_rule(f"{name} of secrets", [f"certificate:{name}"], may, [], ["secret."]))
    settings = {
        "tls_certificate": node_certificate,
        "tls_certificate_key": node_certificate.with_suffix(".key"),
        "tls_client_ca": ca,
        "access_rules": rules,
    }
    environment = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    # A real node with these settings, used over TLS.
    with NodeProcess(data_dir, environment=environment) as node:
        try:
            read, refused, broken = trio.run(_push_read_and_intrude, node.address, clients, Tls(ca=str(ca)), lines)
        except trio.TooSlowError:
            raise DemoFailed(f"the node with TLS and rules did not answer in {PATIENCE_S:g} s") from None
        node.stop()
    # Each refusal that a client saw must be in the audit log, too.
    audit = [json.loads(line) for line in (data_dir / AUDIT_FILE).read_text(encoding="utf-8").splitlines()]
    events = [line["event"] for line in audit if line["event"] in ("refused", "tls_refused")]
    if len(events) != len(refused):
        broken.append(f"{len(refused)} attempts were refused, and the audit log has {len(events)}")
    if read != list(lines):
        broken.append(f"the reader got {len(read)} messages, not the {len(lines)} that were pushed")
    seconds, size_bytes = time.monotonic() - started_s, sum(map(len, lines))
    return GuardedProof(len(lines), size_bytes, len(read), tuple(refused), len(events), seconds, tuple(broken))


async def _push_read_and_intrude(
    address: str, clients: dict[str, Tls], nobody: Tls, lines: Sequence[bytes]
) -> tuple[list[bytes], list[str], list[str]]:
    """Returns the messages of the reader, the reason of each refusal, and the broken promises."""
    read: list[bytes] = []
    refused: list[str] = []
    broken: list[str] = []
    with trio.fail_after(PATIENCE_S):
        # The two clients with rights do their work.
        async with connect(address, tls=clients["publisher"]) as client:
            stream = await client.create(STREAM)
            async with stream.publisher() as publisher:
                for line in lines:
                    await publisher.push(line)
        async with connect(address, tls=clients["reader"]) as client:
            stream = await client.create(STREAM)
            while page := await stream.pull(len(read), 1_000):
                read += [message.data for message in page]
            # The reader tries an action for which it has no right.
            try:
                await stream.push(b"not allowed")
                broken.append("the reader pushed, with the right to read only")
            except AccessDenied as error:
                refused.append(f"reader: {error}")
        # A known certificate without rules, and then no certificate at all.
        for who, tls, refusal, promise in (
            ("eve", clients["eve"], AccessDenied, "a client that no rule names used the stream"),
            ("nobody", nobody, TlsFailed, "a client without a certificate used the node"),
        ):
            try:
                async with connect(address, tls=tls) as client:
                    await client.create(STREAM)
                broken.append(promise)
            except refusal as error:
                refused.append(f"{who}: {error}")
    return read, refused, broken
