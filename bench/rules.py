"""Measures what rules cost: two nodes, one with rules and one without, are pushed to in turns.

    python -m bench.rules

The figure is the processor time of the node for each push, since other work on the machine disturbs it less than the
time on the clock. Each round pushes the same messages to both nodes; the median of all rounds is told.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from access.rights import Right
from access.rule_file import rule_text
from access.rules import Rule
from stream_client.blocking import connect
from stream_node.process import NodeProcess

ROUNDS = 9
MESSAGES = 30_000
SIZE_BYTES = 100
RULES = (
    Rule("one writes", ("anonymous",), may=Right.WRITE | Right.CREATE, on=("bench",)),
    Rule("all read", ("*",), may=Right.READ | Right.INDEX, on=("bench", "other")),
    Rule("others", ("certificate:*", "token:a*"), may=Right.READ | Right.WRITE, on=("", "x")),
    Rule("nobody deletes", ("*",), may_not=Right.DELETE | Right.ADMIN, on=("",)),
)
"""The pusher has no more than the rights that it needs, so that the node cannot skip the check of its messages."""


def push_all(address: str) -> None:
    with connect(address) as client:
        stream = client.create("bench")
        with stream.publisher() as publisher:
            for _ in range(MESSAGES):
                publisher.push(bytes(SIZE_BYTES))


def spent_us(node: NodeProcess) -> float:
    """The processor time of the node, in microseconds, for each message of one round."""
    before_s = node.cpu_seconds()
    push_all(node.address)
    return (node.cpu_seconds() - before_s) * 1e6 / MESSAGES


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-rules-") as folder:
        file = Path(folder) / "access.toml"
        file.write_text("\n".join(map(rule_text, RULES)))
        plain = NodeProcess(Path(folder) / "plain")
        ruled = NodeProcess(Path(folder) / "ruled", arguments=["--access-rules", str(file)])
        with plain, ruled:
            for node in (plain, ruled):
                push_all(node.address)
            rounds = [(spent_us(plain), spent_us(ruled)) for _ in range(ROUNDS)]
    without_us, with_us = (statistics.median(each) for each in zip(*rounds, strict=True))
    share = statistics.median(after / before for before, after in rounds)
    print(f"{without_us:.2f} us a push without rules, {with_us:.2f} us with rules: {100 * (share - 1):+.1f} %")


if __name__ == "__main__":
    main()
