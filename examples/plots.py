"""Export a stream, and plot with Spark its rate and its latency over time. Needs the extra `spark` and matplotlib.

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/plots.py
"""

import os
import tempfile
import time
from pathlib import Path

from matplotlib.figure import Figure

from spark_export import open_session
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.run import Exporter
from spark_export.pipeline import gold
from spark_export.pipeline.bronze import BronzeTable, read_bronze
from spark_export.pipeline.silver import silver_messages
from stream_client import Header, blocking

address = os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000")
with blocking.connect(address) as client, client.create("plots").publisher() as publisher:
    for number in range(2_000):
        publisher.push(b"x" * number, headers=[Header("event_time_us", b"%d" % (time.time_ns() // 1000))])

with tempfile.TemporaryDirectory() as folder:
    with Exporter(ExportSettings(Path(folder), address)) as exporter:
        exporter.run()
    spark = open_session("local[2]", config={"spark.sql.shuffle.partitions": "1"})
    messages = silver_messages(read_bronze(spark, BronzeTable(folder)))
    charts = {"rates": (gold.rates, "bytes"), "latency": (gold.latency, "p99_ms")}
    for name, (aggregate, column) in charts.items():
        rows = aggregate(messages, "10 milliseconds").orderBy("minute").collect()
        figure = Figure(layout="constrained")
        axes = figure.add_subplot(title=name, ylabel=f"{column} in 10 ms")
        axes.plot([row["minute"] for row in rows], [float(row[column]) for row in rows], marker=".")
        figure.savefig(f"{name}.svg")
        print(f"{name}.svg: {len(rows)} points")
