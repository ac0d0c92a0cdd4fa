"""Finding: the result of one check of `stream-node doctor`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["ok", "warning", "wrong"]
Values: TypeAlias = dict[str, int | float | str | None]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    check: the name of the check.
    text: the observed fact and, unless the status is "ok", advice.
    values: the facts of the text for programs, by name.
    """

    check: str
    status: Status
    text: str
    values: Values = {}
