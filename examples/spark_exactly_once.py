"""Spark writes each message of a stream exactly once into a database, also if the program is killed and started again.

A transaction has the rows of a micro-batch and the number of the micro-batch. After a crash, Spark repeats the last
micro-batch with the same number and the same rows, and the database already has that number. The checkpoint and the
database belong together. Give a folder, and start the program again after a kill (it needs the extra `spark`):

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/spark_exactly_once.py
"""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from spark_export import open_session
from stream_client import blocking

ADDRESS = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
ORDERS = 200


def main(folder: Path) -> None:
    with blocking.connect(ADDRESS) as client:
        orders = client.create("orders")
        with orders.publisher() as publisher:
            publisher.push_many([b"order %d" % number for number in range(orders.info().next_index, ORDERS)])

    def keep(batch: Any, number: int) -> None:
        rows = [tuple(row) for row in batch.select("offset", "value").collect()]
        with closing(sqlite3.connect(folder / "orders.sqlite")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY)")
            database.execute("CREATE TABLE IF NOT EXISTS orders (place INTEGER, data BLOB)")
            if database.execute("INSERT OR IGNORE INTO batches VALUES (?)", (number,)).rowcount:
                database.executemany("INSERT INTO orders VALUES (?, ?)", rows)

    spark = open_session("local[2,4]")
    options = {"endpoint": ADDRESS, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    frame = spark.readStream.format("stream_node").options(**options).load()
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    with closing(sqlite3.connect(folder / "orders.sqlite")) as database:
        count, different = database.execute("SELECT count(*), count(DISTINCT place) FROM orders").fetchone()
    print(f"{count} rows of {different} messages")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
