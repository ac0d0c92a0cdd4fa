"""What came of the attacks of `test_acts`: for each kind of peer and framing, the numbers that a run has found.

The file attacks.json keeps them, and docs/security.md has them as a table. A run that finds something else fails. With
the variable RECORD_ATTACKS=1, a run of tests/ockam/identity/rules/test_acts.py in one process (`-n 0`) writes the file
again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from ockam.transport.wire import Wire
from tests.ockam.identity.rules.ways import WAYS, WIRES, Way

FILE = Path(__file__).with_name("attacks.json")


class Attack(NamedTuple):
    """sent: the requests without their right. refused: those that the node has counted as refused. audited: those that
    its audit log has."""

    sent: int
    refused: int
    audited: int


def note_attack(way: Way, wire: Wire, found: Attack) -> None:
    """Compares the numbers of one run with the file, or writes them into it."""
    key, known = f"{way.name}, {wire.name}", json.loads(FILE.read_text(encoding="utf-8"))
    if os.environ.get("RECORD_ATTACKS") == "1":
        FILE.write_text(json.dumps(known | {key: found._asdict()}, indent=1) + "\n", encoding="utf-8")
        return
    assert known[key] == found._asdict(), f"attacks.json says {known[key]} for {key}, and this run found {found}"


def attack_table() -> str:
    """The table of docs/security.md."""
    rows = [
        "| Peer | Identity | Framing | Requests without their right | Refused | Audited |",
        "|---|---|---|---|---|---|",
    ]
    known = json.loads(FILE.read_text(encoding="utf-8"))
    for way in WAYS:
        for wire in WIRES:
            found = Attack(**known[f"{way.name}, {wire.name}"])
            rows.append(f"| {way.name} | `{way.documented}` | {wire.name} | {' | '.join(map(str, found))} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(attack_table(), end="")
