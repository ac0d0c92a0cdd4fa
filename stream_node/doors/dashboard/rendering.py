"""Rendering: makes pages from templates, and serves the static files. Every value in a page is escaped."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.responses import Response

from ockam.identity.rules.rights import Right
from stream_service.extensions import Retention

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages. Browsers run no script that stands within a page, so none within a message."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) and 0 < abs(value) < 10 else f"{value:,.0f}"


def size(value: float) -> str:
    amount, unit = float(value), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if amount >= 100 else f"{round(amount, 1):g} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def clock(time_us: int) -> str:
    """Returns a time in UTC, to the millisecond; outside of the years 1 to 9999, its number of microseconds."""
    try:
        moment = datetime.fromtimestamp(time_us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def ago(time_us: int) -> str:
    seconds = time.time() - time_us / 1e6
    return "now" if abs(seconds) < 1 else f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def kept(retention: Retention | None) -> str:
    if retention is None:
        return "default"
    limits = [
        None if retention.age_s is None else duration(retention.age_s),
        None if retention.messages is None else f"{number(retention.messages)} messages",
        None if retention.size_bytes is None else size(retention.size_bytes),
    ]
    return ", ".join(each for each in limits if each) or "no limit"


def link(path: str, **query: Any) -> str:
    """Returns the address of a page. All characters of names are allowed, because they are quoted."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"/dashboard{path}" + (f"?{urlencode(given)}" if given else "")


ASSETS = {
    file.relative_to(STATIC).as_posix(): (file.read_bytes(), MEDIA_TYPES[file.suffix])
    for file in STATIC.rglob("*")
    if file.suffix in MEDIA_TYPES
}
"""The static files and their media types. Peers choose the names that they ask for, which never become paths."""


@cache
def asset(name: str) -> str:
    """Returns the address of a static file. It changes with the file, so browsers can keep the file for good."""
    return f"/dashboard/static/{name}?v={hashlib.sha256(ASSETS[name][0]).hexdigest()[:12]}"


@cache
def _templates() -> Environment:
    # The first page loads jinja2, which takes 2 MB.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kept"] = kept
    for each in (number, size, duration, clock, ago):
        environment.filters[each.__name__] = lambda value, shown=each: "-" if value is None else shown(value)
    environment.globals.update(link=link, asset=asset, Right=Right)
    return environment


def render(template: str, values: dict[str, Any], status: int = 200, *, is_part: bool = False) -> Response:
    """Returns a page. is_part: send only its block `now`, which changes while the page is open, or else `content`."""
    found = _templates().get_template(template)
    blocks = [found.blocks[name] for name in ("now", "content") if is_part and name in found.blocks]
    text = "".join(blocks[0](found.new_context(values))) if blocks else found.render(values)
    # Without any referrer, browsers would send forms with the origin "null", which the node refuses.
    headers = {"content-security-policy": POLICY, "referrer-policy": "same-origin", "vary": "hx-request"}
    return Response(text, status, headers, "text/html")
