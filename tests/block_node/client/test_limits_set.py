"""Goal: the limits of publishers and subscribers are settings of the node, and what they end goes on by itself.

Method: configurations from the environment; whole servers with small limits.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from block_node.blocks.items import split_block
from block_node.client import BlockRefused, OutgoingBlock, PublishSettings, connect
from block_node.protocol import PUBLISH, OpenSession, SessionOpened, StreamEnded
from block_node.publish.block_machine import PublishLimits
from block_node.read.feed import SubscribeLimits
from stream_client import Reconnect
from stream_client import connect as connect_streams
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from tests.block_node.client.chains import chain, outgoing
from tests.support.blocks import real_blocks, real_roots
from tests.support.served import PATIENCE_S, served, wait_until

QUICK = Reconnect(delay_s=0.01, delay_s_max=0.05)


@pytest.mark.parametrize(
    ("prefix", "limits", "own"),
    [
        (
            "block_publish_",
            PublishLimits(),
            {"tick_s", "slice_items_max", "slice_bytes_max", "earned_items_per_s", "earned_bytes_per_s"},
        ),
        ("block_subscribe_", SubscribeLimits(), {"tick_s", "window_bytes_min", "window_bytes_max"}),
    ],
)
def test_every_limit_is_a_setting_with_the_same_default(prefix: str, limits: msgspec.Struct, own: set[str]) -> None:
    """But for `own`, which nobody needs to change."""
    config = msgspec.structs.asdict(Config())
    settings = {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}
    wanted = {name: value for name, value in msgspec.structs.asdict(limits).items() if name not in own}
    assert settings == wanted


def test_a_limit_is_read_from_the_environment_and_checked() -> None:
    given = {"STREAM_NODE_BLOCK_PUBLISH_BLOCK_S_MAX": "7.5", "STREAM_NODE_BLOCK_SUBSCRIBE_DURATION_S_MAX": "60"}
    config = load_config({}, environment=given)
    assert (config.block_publish_block_s_max, config.block_subscribe_duration_s_max) == (7.5, 60.0)
    with pytest.raises(ConfigError, match="block_publish_stall_blocks_max in the environment"):
        load_config({}, environment={"STREAM_NODE_BLOCK_PUBLISH_STALL_BLOCKS_MAX": "0"})


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"block_known_roots": ["7"]}, "block_known_roots on the command line: '7' is not NUMBER:HEX"),
        ({"block_known_roots": ["7:xy"]}, "is not NUMBER:HEX"),
        (
            {"block_known_roots": ["7:00"]},
            ": the root of block 7 has 1 bytes, not 48",
        ),
        ({"block_levels": ["merkle"]}, "block_levels on the command line: STRUCTURE cannot be switched off"),
        ({"block_levels": ["structure", "all"]}, "'all' is not one of structure, merkle"),
        ({"block_levels": ["structure", "merkle", "tss"]}, "tss needs block_tss_verifier"),
        ({"block_tss_verifier": "nowhere:Verifier"}, "does not make a verifier: ModuleNotFoundError"),
        ({"block_tss_verifier": "collections:OrderedDict"}, "has no verify_tss"),
        ({"block_signatures_min": "5"}, "5 are wanted, and the address book has 4 nodes"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(shared_dir: Path, settings: dict[str, Any], refusal: str) -> None:
    book = str(shared_dir / "data" / "hiero" / "SOLO_4N" / "address-book.json")
    with pytest.raises(ConfigError, match=refusal):
        load_config({"block_address_book": book, **settings}, environment={})


async def test_real_blocks_pass_at_the_levels_of_a_node(tmp_path: Path, shared_dir: Path) -> None:
    """State proofs of blocks 1 to 4 lead to block 5; those with threshold signatures alone pass where that is set."""
    levels = ("structure", "merkle", "chain", "state_proof")
    roots = real_roots(shared_dir, "SCHNORR")
    async with served(tmp_path / "strict", log_level="error", block_levels=levels) as running:
        with pytest.raises(BlockRefused, match="no level that is on checks its proofs"):
            await publish_real(shared_dir, running.address)
    wrong = f"3:{roots[2].hex()}"
    for known, last in ((f"3:{roots[3].hex()}", 5), (wrong, 2)):
        settings = {"block_levels": levels, "block_accept_unchecked_proofs": True, "block_known_roots": (known,)}
        async with served(tmp_path / str(last), log_level="error", **settings) as running:
            with pytest.raises(BlockRefused, match="block 3") if last == 2 else nullcontext():
                await publish_real(shared_dir, running.address)
            await wait_available(running.address, last)


async def test_a_node_asks_its_external_verifier(
    tmp_path: Path, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the real chain it refuses the threshold signature of block 5, so that 0 to 4 are stored."""
    (tmp_path / "ledger.py").write_text(
        "class Ledger:\n    def verify_tss(self, signed):\n        return signed.proof_of < 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"block_levels": ("structure", "merkle", "chain", "tss"), "block_tss_verifier": "ledger:Ledger"}
    async with served(tmp_path / "data", log_level="error", **settings) as running:
        with pytest.raises(BlockRefused, match="is not the ledger's"):
            await publish_real(shared_dir, running.address)
        await wait_available(running.address, 4)


async def wait_available(address: str, last: int) -> None:
    """Wait until this block is the last one; blocks before a refused one may still be on their way to the disk."""
    with trio.fail_after(PATIENCE_S):
        async with connect(address) as client:
            while (found := (await client.status()).last_available) != last:
                assert found is None or found < last
                await trio.sleep(0.01)


async def publish_real(shared_dir: Path, address: str) -> None:
    async with (
        connect(address) as blocks_client,
        blocks_client.publisher(PublishSettings(reconnect=QUICK)) as publisher,
    ):
        for block in real_blocks(shared_dir, "SCHNORR"):
            await publisher.send(OutgoingBlock.from_items(list(split_block(block))))


async def test_no_more_publishers_than_are_set(tmp_path: Path) -> None:
    async with (
        served(tmp_path, log_level="error", block_publish_sessions_max=1) as running,
        connect_streams(running.address) as connection,
    ):
        answers = []
        for token in (b"a", b"b"):
            conversation = connection.converse("block_publish")
            await conversation.send(PUBLISH.encode_request(OpenSession(token)))
            payload = await conversation.receive()
            assert payload is not None
            answers.append(PUBLISH.decode_response(payload))
        assert isinstance(answers[0], SessionOpened)
        assert isinstance(answers[1], StreamEnded)
        assert "1 publishers are connected already" in answers[1].reason


async def test_a_subscription_that_lasted_too_long_goes_on_where_it_was(tmp_path: Path) -> None:
    """The node ends it with SUCCESS, which is not the end for a subscriber that has not all it asked for."""
    numbers: list[int] = []
    async with (
        served(tmp_path, log_level="error", block_subscribe_duration_s_max=0.05) as running,
        connect(running.address) as client,
    ):

        async def publish(*these: int) -> None:
            async with client.publisher(PublishSettings(reconnect=QUICK)) as publisher:
                for number in these:
                    await publisher.send(outgoing(chain(20)[number]))

        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                async with client.subscribe(0, reconnect=QUICK, wait=False) as received:
                    async for block in received:
                        numbers.append(block.number)
                        if block.number == 5:
                            return

            async with client.publisher(PublishSettings(reconnect=QUICK)) as stays:
                await stays.send(outgoing(chain(20)[0]))
                await stays.flush()
                nursery.start_soon(follow)
                await wait_until(lambda: _ended(running.statistics().services.blocks) >= 1)
                await publish(1, 2, 3, 4, 5)
    assert numbers == list(range(6))


def _ended(blocks: object) -> int:
    """Subscriptions that have ended with SUCCESS."""
    ended = msgspec.to_builtins(blocks)["readers"]["subscribe"]["ended"]
    return int(ended.get("SUCCESS", 0))
