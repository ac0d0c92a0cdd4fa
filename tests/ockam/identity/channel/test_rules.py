"""Goal: what comes out of a channel has the rights of its proved identity. Method: a node with rules, real clients."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ockam.identity.channel.identity_file import create_identity
from stream_client import AccessDenied, SecureChannel, connect
from tests.support.served import served


async def test_the_rights_of_an_identity_hold_through_its_channel(tmp_path: Path) -> None:
    now_s = int(time.time())
    alice, bob = (create_identity(tmp_path / f"{name}.json", now_s) for name in ("alice", "bob"))
    node = create_identity(tmp_path / "data" / "identity.json", now_s)
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[rule]]\nname = "alice"\nwho = "channel:{alice}"\nmay = ["create", "write", "read"]\non = ["orders"]\n'
    )
    settings = {"access_rules": str(rules), "secure_channel_trusted": (str(alice), str(bob))}
    async with served(tmp_path / "data", **settings) as running:
        async with connect(running.address, channel=SecureChannel(identity=alice, peer=str(node))) as client:
            stream = await client.create("orders")
            assert await stream.push(b"x") == 0
            assert [each.data for each in await stream.pull()] == [b"x"]
            with pytest.raises(AccessDenied):
                await client.create("others")
        # Trusted is not allowed: an identity without a rule may open a channel, and nothing more.
        async with connect(running.address, channel=SecureChannel(identity=bob, peer=str(node))) as client:
            with pytest.raises(AccessDenied, match="channel:I"):
                await client.create("orders")
        # Without a channel nobody is alice.
        async with connect(running.address) as client:
            with pytest.raises(AccessDenied, match="anonymous"):
                await client.create("orders")
