"""Push messages, read them back, and print how many the stream has. This script has no event loop and no threads.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/blocking_script.py
"""

from __future__ import annotations

import os

from stream_client import blocking

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")

with blocking.connect(ADDRESS) as client:
    stream = client.create("examples.script")
    with stream.publisher() as publisher:
        # At most 1,000 pushes are unconfirmed at a time. The `with` block ends when all are on disk.
        for number in range(5_000):
            publisher.push(b"line %d" % number)
    last = stream.push(b"the last one")
    for message in stream.pull(index=last - 2):
        print(message.index, message.data.decode())
    info = stream.info()
    print(f"{info.count} messages of {info.size_bytes} bytes in {info.stream_name}")
