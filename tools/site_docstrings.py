"""An extension of griffe, which reads the sources for mkdocstrings: docstrings become Markdown.

Our docstrings explain a parameter in a line that begins with its name. Markdown would join such lines to one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXPLANATION = re.compile(r"^ *(?P<names>`?\w+`?(?:, `?\w+`?)*): +(?P<text>\S.*)$")


class Explanations(griffe.Extension):
    """Makes a list of the lines that explain parameters, fields and words."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of an object, when griffe has read it."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Returns a docstring whose explanations are a list in Markdown. Its other lines stay as they are."""
    lines: list[str] = []
    within = False
    for line in docstring.splitlines():
        found = EXPLANATION.match(line)
        if found:
            if not within:
                lines.append("")
            within = True
            names = ", ".join(f"`{name.strip('`')}`" for name in found["names"].split(", "))
            lines.append(f"- {names}: {found['text']}")
        else:
            within = within and bool(line.strip())
            lines.append(f"    {line.strip()}" if within else line)
    return "\n".join(lines)
