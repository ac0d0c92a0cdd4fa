"""Goal: the limits of publishers and subscribers are settings of the node, and what they end goes on by itself.

Method: configurations from the environment; whole servers with small limits.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from block_node.client import BlockClient, PublishSettings
from block_node.client.connection import open_connection
from block_node.protocol import PUBLISH, OpenSession, SessionOpened, StreamEnded
from block_node.publish_limits import PublishLimits
from block_node.subscribe_plan import SubscribeLimits
from stream_node.config import Config, ConfigError, load_config
from stream_service.client import Reconnect
from tests.block_node.client.chains import chain, outgoing
from tests.support.served import served, wait_until

QUICK = Reconnect(delay_s=0.01, delay_s_max=0.05)


@pytest.mark.parametrize(
    ("prefix", "limits", "own"),
    [
        ("block_publish_", PublishLimits(), {"tick_s", "slice_items_max", "slice_bytes_max"}),
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


async def test_no_more_publishers_than_are_set(tmp_path: Path) -> None:
    async with (
        served(tmp_path, log_level="error", block_publish_sessions_max=1) as running,
        open_connection(running.address) as connection,
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
    async with served(tmp_path, log_level="error", block_subscribe_duration_s_max=0.05) as running:
        client = BlockClient([running.address])

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
