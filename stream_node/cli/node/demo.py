"""The command `stream-node demo` and its options. The steps of the demo are in `stream_node/demo/`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.output import AS_JSON


def demo(
    input_dir: Annotated[Path | None, "The folder of the text files to push."] = None,
    with_export: Annotated[
        bool, typer.Option("--export/--no-export"), "Export the messages with Spark at the end, if Spark is installed."
    ] = True,
) -> None:
    """Start two nodes, push real text through them, kill processes, and prove that no confirmed message is lost.

    Example: stream-node demo
    """
    from stream_node.demo.run import run_demo

    run_demo(input_dir, with_export=with_export, as_json=AS_JSON.get())
