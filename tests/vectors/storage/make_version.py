"""Makes the database of this version of the program that all later versions must open: `version_N.sqlite.gz`, and
`version_N.json` with what a real node was given, by real clients.

    PYTHONPATH=. python tests/vectors/storage/make_version.py

N is the schema version. A file that exists is not replaced: it is what the released program wrote. Raise SCHEMA_VERSION
first, and run this before the release of that version. Until then, remove its files and run this again when a table
was added.
"""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from block_node.backfill.state import save_target
from block_node.blocks.files import read_items
from stream_client import Retention, blocking
from stream_client.blocking import SavedIndexes
from stream_node.node.process import NodeProcess
from stream_service.stored import INSERT_FALL
from stream_storage.contract import Append, Operation
from stream_storage.seal import seal_of
from stream_storage.sqlite.backup import back_up
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.schema import SCHEMA_VERSION

FOLDER = Path(__file__).parent
NAME = f"version_{SCHEMA_VERSION}"
BLOCKS = 4


def text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def fill(node: NodeProcess, copy: Path) -> dict[str, Any]:
    """Gives a node messages, retentions, positions and leases, copies its database, and returns what it was given."""
    streams: dict[str, list[list[Any] | None]] = {}
    with blocking.connect(node.address) as client:
        plain = client.create("größe/Ω 字")
        pushed: list[list[Any] | None] = []
        for number in range(40):
            key = b"key %d" % (number % 3) if number % 2 else None
            headers = [("content-type", b"text/plain"), ("content-type", b"again"), ("n", b"%d" % number)][: number % 4]
            data = bytes([number]) * (number * 37 % 500)
            plain.push(data, key=key, headers=headers)
            pushed.append([text_of(data), text_of(key), [[name, text_of(value)] for name, value in headers]])
        plain.set_retention(Retention(age_s=None, messages=10_000, size_bytes=10**9))
        streams[f"{plain.name}/0"] = pushed
        jobs = client.create_partitioned("jobs", 3)
        for partition in range(3):
            rows: list[list[Any] | None] = []
            for number in range(5 + partition):
                data = b"job %d of %d" % (number, partition)
                jobs.partitions[partition].push(data)
                rows.append([text_of(data), None, []])
            streams[f"jobs/{partition}"] = rows
        gone = client.create("shortened")
        for number in range(6):
            gone.push(b"%d" % number)
        gone.truncate(4)
        streams["shortened/0"] = [None, None, None, None, [text_of(b"4"), None, []], [text_of(b"5"), None, []]]
        # The last number of a publisher whose messages are gone is in a table of its own.
        numbered = client.create("numbered")
        with numbered.publisher(publisher_id=b"device") as publisher:
            for number in range(3):
                publisher.push(b"%d" % number)
        numbered.truncate(3)
        streams["numbered/0"] = [None, None, None]
        client.create("empty")
        streams["empty/0"] = []
        positions = {"reader": 7, "größe": 40}
        for consumer, index in positions.items():
            SavedIndexes(client, consumer).save(plain.name, {0: index})
        # The position of a consumer says of which incarnation of the stream it is.
        with plain.consumer("resumed") as resumed:
            for _ in zip(range(3), resumed, strict=False):
                pass
        positions["resumed"] = 3
        # The copy is made while a member is there, so that its leases are in the database.
        with jobs.shared_consumer("workers") as group:
            for _ in zip(range(6), group.messages(stop_at_end=True), strict=False):
                group.save(with_last=True)
            fences = {str(partition): fence for partition, fence in group.fences.items()}
            back_up(node.data_dir, copy, now_us=0, check=True, progress=lambda *_: None)
    return {"streams": streams, "positions": positions, "fences": fences}


def publish_blocks(node: NodeProcess, folder: Path) -> dict[str, str]:
    """Gives a node a chain of blocks, and returns the SHA-256 of the items of each."""
    for arguments in (
        ("generate", str(folder), "--blocks", str(BLOCKS), "--items", "6"),
        ("publish", str(folder), "--node", node.address),
    ):
        subprocess.run([sys.executable, "-m", "stream_node", "block", *arguments], check=True, capture_output=True)
    items = {number: list(read_items(folder / f"{number}.blk.zstd")) for number in range(BLOCKS)}
    return {str(number): sha256(b"".join(each)).hexdigest() for number, each in items.items()}


class Fall(Operation):
    """Stores a message with an earlier time, as after a clock that was set back."""

    def apply(self, session: Any) -> None:
        record = session.log.ensure_stream("clock set back", 0, 1)
        session.log.append([Append(record.stream_id, 0, 2_000_000, [b"later"])])
        session.log.append([Append(record.stream_id, 1, 1_000_000, [b"now"])])
        row = (record.stream_id, 1)
        session.connection.execute(INSERT_FALL, (*row, seal_of("time_falls", row)))


def main() -> None:
    target = FOLDER / f"{NAME}.sqlite.gz"
    if target.exists():
        sys.exit(f"{target.name} exists: it is what a program of this version wrote, and stays as it is")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "copy"
        with NodeProcess(Path(folder) / "data") as node:
            blocks = publish_blocks(node, Path(folder) / "chain")
            given = fill(node, data)
        database = Database.open(data)
        session = database.session()
        session.begin()
        save_target(session, "block_node.blocks", 9)
        Fall(lambda _: None).apply(session)
        session.commit()
        session.close()
        database.close()
        target.write_bytes(gzip.compress((data / FILE_NAME).read_bytes(), 9, mtime=0))
    given["streams"]["clock set back/0"] = [[text_of(b"later"), None, []], [text_of(b"now"), None, []]]
    content = {"schema_version": SCHEMA_VERSION, **given, "blocks": blocks}
    (FOLDER / f"{NAME}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
