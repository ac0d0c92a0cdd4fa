"""Claim: a look for a stream, as at each micro-batch, costs nothing for streams whose names begin with its name.

Method: a real node; the messages that it routes while a stream is looked for that has such neighbours, and one that has
none. The catalog of the node's own file says the same.
"""

from __future__ import annotations

from pathlib import Path

import trio

from spark_export.source.catalog import find_catalog, selected
from spark_export.source.options import read_options
from tests.support.served import served
from tests.support.stream_peer import stream_peer


async def test_a_stream_is_found_without_a_listing_of_its_neighbours(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        async with stream_peer(node.address) as peer:
            await peer.create_partitions("s", 2)
            await peer.create_partitions("s-long", 2_500)
            await peer.create_partitions("t", 2)
        routed = []
        for name in ("s", "t"):
            before = node.statistics().node.routed
            for given in ({"endpoint": node.address}, {"path": str(tmp_path)}):
                options = read_options({"subscribe": name, **given})
                found = await trio.to_thread.run_sync(selected, options, find_catalog(options))
                assert list(found) == [(name, 0), (name, 1)]
            routed.append(node.statistics().node.routed - before)
        assert routed[0] == routed[1] > 0
