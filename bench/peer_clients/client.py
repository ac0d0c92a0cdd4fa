"""Does the measured work on another server, with the client that a Python user would pick for that server.

It is a program of its own, because the packages of these clients lie in a folder that no other program may see:

    python -m bench.peer_clients.client FOLDER redis|nats|nats_batches|postgres PORT WORK LOAD

LOAD: the fields of `Load`, in JSON. It prints the fields of `Done` as one JSON line. Of this project, only
modules of this folder are imported.
"""

from __future__ import annotations

import importlib
import json
import sys

from bench.peer_clients.load import Done, Load

WORKS = {
    "redis": ("redis_work", "RedisWork"),
    "nats": ("nats_work", "NatsWork"),
    "nats_batches": ("nats_work", "NatsBatchWork"),
    "postgres": ("postgres_work", "PostgresWork"),
}


def main() -> None:
    folder, kind, port, work, load = sys.argv[1:]
    sys.path.insert(0, folder)
    module, name = WORKS[kind]
    worker = getattr(importlib.import_module(f"bench.peer_clients.{module}"), name)(int(port))
    done: Done = getattr(worker, work)(Load(**json.loads(load)))
    sys.stdout.write(json.dumps(done._asdict()) + "\n")


if __name__ == "__main__":
    main()
