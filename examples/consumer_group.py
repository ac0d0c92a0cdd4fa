"""A consumer group: start this program several times, and its members share the partitions of a stream.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/consumer_group.py

Each message goes to one member. A member that ends, also by Ctrl-C or SIGTERM, gives its partitions to the others at
once. If a member is killed, others get its partitions in less than a second, and the messages after its last saved
position again; if its machine is gone, after 10 s.
"""

from __future__ import annotations

import os

from stream_client import LeaseLost, blocking

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")

with blocking.stop_on_signals(), blocking.connect(ADDRESS) as client:
    jobs = client.create_partitioned("examples.jobs", 4)
    for number in range(12):
        jobs.push(f"job {number}", key=f"customer {number % 5}")
    with jobs.shared_consumer("examples.workers") as group:
        # Without stop_at_end, the loop waits for further jobs without end.
        messages = group.messages(stop_at_end=True)
        while True:
            try:
                for partition, message in messages:
                    # The fence rises with every new holder of a partition. Pass it to systems that must refuse work
                    # from an older holder.
                    print(f"partition {partition}, fence {group.fences[partition]}: {message.data.decode()}")
                break
            except LeaseLost as lost:
                # This member was too slow and lost a partition. It continues with its other partitions.
                print(lost)
