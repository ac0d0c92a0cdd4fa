"""Goal: a node proves its own name to other nodes by a token, and never lends it to peers whose messages it forwards.

Method: two whole servers, the far one with rules that allow everything to tokens and nothing else; backfill as what the
near node asks for itself, and a real client that goes through the near node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog.testing

import block_node.client
from block_node.client import OutgoingBlock
from ockam.actors.address import tcp
from ockam.identity.tls import Tls
from stream_client import AccessDenied, connect
from stream_node.node.config import ConfigError
from stream_node.node.config_sources import load_config
from tests.block_node.backfill.served_blocks import QUICK, chain
from tests.support.certificates import Authority
from tests.support.served import Served, served, wait_until
from tests.tls.keys import HOSTS
from tests.tokens.token_node import UNKNOWN, first_token, own_address, token_node


def stored_blocks(running: Served) -> int:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node.store.blocks


async def publish(address: str, token: str, count: int) -> None:
    async with block_node.client.connect(address, token=token) as client, client.publisher() as publisher:
        for block in chain(count):
            await publisher.send(OutgoingBlock.from_items(block.items))
        await publisher.flush()


async def test_backfill_proves_its_name_and_forwarded_messages_prove_nothing(tmp_path: Path) -> None:
    token = first_token(tmp_path / "far", "near-node")
    (tmp_path / "near.token").write_text(token)
    async with token_node(tmp_path / "far") as far:
        await publish(far.address, token, 5)
        settings = {
            "backfill_block_node_sources": (far.address,),
            "forward_tokens": (f"{far.address}={tmp_path / 'near.token'}",),
            "allow_forward": (far.address,),
        }
        async with served(tmp_path / "near", **settings, **QUICK) as near:
            await wait_until(lambda: stored_blocks(near) == 5)
            async with connect(near.address, via=(tcp(far.address),)) as client:
                with pytest.raises(AccessDenied, match="for anonymous"):
                    await client.create("orders")
            # The node may ask for itself afterwards, too: the connection of the peer is another one.
            await publish(far.address, token, 6)
            await wait_until(lambda: stored_blocks(near) == 6)


async def test_a_certificate_is_not_shown_beside_a_token(tmp_path: Path) -> None:
    """Over TLS, with a node that has a certificate of its own: a second identity would be refused."""
    token = first_token(tmp_path / "far", "near-node")
    (tmp_path / "near.token").write_text(token)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=HOSTS)
    both = {"tls_certificate": certificate, "tls_certificate_key": key, "tls_client_ca": authority.ca}
    async with token_node(tmp_path / "far", **both, tls_client_required=False) as far:
        async with (
            block_node.client.connect(far.address, token=token, tls=Tls(ca=authority.ca)) as client,
            client.publisher() as publisher,
        ):
            for block in chain(3):
                await publisher.send(OutgoingBlock.from_items(block.items))
            await publisher.flush()
        settings = {
            "backfill_block_node_sources": (far.address,),
            "forward_tokens": (f"{far.address}={tmp_path / 'near.token'}",),
            "tls_forward_ca": authority.ca,
        }
        async with served(tmp_path / "near", **both, **settings, **QUICK) as near:
            await wait_until(lambda: stored_blocks(near) == 3)


async def test_a_refused_token_is_in_the_log_and_nothing_is_fetched(tmp_path: Path) -> None:
    token = first_token(tmp_path / "far")
    (tmp_path / "near.token").write_text(UNKNOWN)
    async with token_node(tmp_path / "far") as far:
        await publish(far.address, token, 2)
        settings = {
            "backfill_block_node_sources": (far.address,),
            "forward_tokens": (f"{far.address}={tmp_path / 'near.token'}",),
            # A question that met the refusal is given up after this time.
            "backfill_fetch_timeout_secs": 3.0,
        }
        with structlog.testing.capture_logs() as lines:
            async with served(tmp_path / "near", **settings, **QUICK) as near:
                await wait_until(lambda: [line for line in lines if line["event"] == "token_not_accepted"])
                assert stored_blocks(near) == 0
                # A new token in the file is used for the next connection.
                (tmp_path / "near.token").write_text(token)
                await wait_until(lambda: stored_blocks(near) == 2)
        (first, *_) = [line for line in lines if line["event"] == "token_not_accepted"]
        assert first["destination"] == far.address
        assert "does not know the token" in first["reason"]
        assert UNKNOWN[6:] not in str(lines)
        assert token[6:] not in str(lines)


async def test_a_node_sends_no_token_to_another_machine_without_tls(tmp_path: Path) -> None:
    token = first_token(tmp_path / "far")
    (tmp_path / "near.token").write_text(token)
    async with token_node(tmp_path / "far", f"{own_address()}:0", insecure=True) as far:
        settings = {
            "backfill_block_node_sources": (far.address,),
            "forward_tokens": (f"{far.address}={tmp_path / 'near.token'}",),
        }
        with structlog.testing.capture_logs() as lines:
            async with served(tmp_path / "near", **settings, **QUICK):
                await wait_until(lambda: [line for line in lines if "set tls_forward_ca" in str(line.get("reason"))])
        assert "token_refused" not in far.running.statistics().tcp.closed


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("10.0.0.5:4000", "write it as HOST:PORT=FILE"),
        ("10.0.0.5=/none", "is not HOST:PORT"),
        ("10.0.0.5:4000=/none", "cannot read the token file /none"),
    ],
)
def test_wrong_settings_are_said(entry: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({"forward_tokens": (entry,)}, environment={})
