"""Finding: the result of one check of `stream-node doctor`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["ok", "warning", "wrong"]
Values: TypeAlias = dict[str, int | float | str | None]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. text: the observed fact and, unless the status is "ok", advice. values: for programs."""

    check: str
    status: Status
    text: str
    values: Values = {}
