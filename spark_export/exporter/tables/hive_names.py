"""Makes the names of folders such as `stream=orders/date=2026-11-21`, from which Hive and Spark read column values.

Spark executors load this module.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

NO_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value that Hive writes in a folder name for an empty value, such as an empty stream name."""


def hive_folder(stream: str, date: str) -> str:
    """Returns the folder `stream=…/date=…`, escaped as in Hive and Spark."""
    return f"{stream_folder(stream)}/date={date}"


def stream_folder(stream: str) -> str:
    """Returns the folder `stream=…`. Only ASCII is escaped: Spark decodes each escaped byte as one character."""
    escaped = "".join(each if ord(each) > 127 else quote(each, safe=" ,;@&+$!()~") for each in stream)
    return f"stream={escaped or NO_NAME}"
