"""The counters of the calls about blocks, named as in the reference block node where it has the same ones.

Source of the names: docs/block-node/metrics.md of hiero-ledger/hiero-block-node, at b81bbd119. On that page, each
name begins with `blocknode_`, and the name of a counter ends with `_total`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from block_node.read.subscribe import SubscribeStatistics

ANSWERS: Final = {
    "acknowledgement": "publisher_blocks_ack_sent",
    "skip_block": "publisher_blocks_skips_sent",
    "resend_block": "publisher_blocks_resend_sent",
    "node_behind_publisher": "publisher_block_node_behind_sent",
    "end_stream": "publisher_block_endofstream_sent",
}
"""The name of the counter of each answer to a publisher, by the answer's field in the message."""

COUNTED: Final = {
    "publisher_block_items_received": "Items that publishers have sent, without those of dropped sets.",
    "publisher_blocks_closed_complete": "Blocks of which a publisher has sent the end.",
    "publisher_receive_latency_ns": "Time from the header to the end of these blocks, in nanoseconds.",
    "publisher_stream_sets_dropped": "Sets of items that came after their block was refused.",
    "publisher_block_endstream_received": "Ends of streams that publishers have sent.",
    "publisher_blocks_ack_sent": "Acknowledgements to publishers.",
    "publisher_blocks_skips_sent": "Publishers asked to skip a block.",
    "publisher_blocks_resend_sent": "Publishers asked to send a block again.",
    "publisher_block_node_behind_sent": "Publishers told that the node is behind them.",
    "publisher_block_endofstream_sent": "Streams of publishers that the node has ended, for any reason.",
    "publisher_stream_errors": "Those of them that the node ended for a fault of either side.",
    "publisher_stall_timeouts_sent": "Those of them that ended because their publisher was too slow or silent.",
    "subscriber_errors": "Subscriptions that ended by an error of the node.",
    "get_block_requests": "Requests for one block.",
    "get_block_requests_success": "Requests whose block was sent.",
    "get_block_requests_not_available": "Requests for a block that is not here.",
    "get_block_requests_not_found": "Requests for a block whose bytes are damaged.",
    "server_status_requests": "Requests for the status.",
    "server_status_details_requests": "Requests for the status in detail.",
}
"""The help text of each counter, by the counter's name."""


class GrpcCallStatistics(msgspec.Struct, frozen=True):
    """The calls about blocks. publishers: the number of open streams. counted: counters since the start (COUNTED).

    - lowest_inbound, highest_inbound: the blocks that publishers send now; None: none.
    - window_closed_s: by party (a host or an identity), the longest time for which one of its publishers could send
      nothing, for any reason. Only the parties that published last are listed.
    """

    publishers: int
    lowest_inbound: int | None
    highest_inbound: int | None
    window_closed_s: dict[str, float]
    subscribe: SubscribeStatistics
    counted: dict[str, int]
