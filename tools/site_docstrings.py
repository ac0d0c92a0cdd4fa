"""Makes Markdown of docstrings, for `docs/python.md`.

Our docstrings explain a parameter in a line that begins with its name. Markdown would join such lines to one paragraph.
"""

from __future__ import annotations

import re

EXPLANATION = re.compile(r"^ *(?P<names>`?\w+`?(?:, `?\w+`?)*): +(?P<text>\S.*)$")


def as_markdown(docstring: str) -> str:
    """Returns a docstring whose explanations are a list in Markdown. Its other lines stay as they are."""
    lines: list[str] = []
    within = False
    for line in docstring.splitlines():
        found = EXPLANATION.match(line)
        if found:
            if not within and lines and lines[-1]:
                lines.append("")
            within = True
            names = ", ".join(f"`{name.strip('`')}`" for name in found["names"].split(", "))
            lines.append(f"- {names}: {found['text']}")
        else:
            within = within and bool(line.strip())
            lines.append(f"    {line.strip()}" if within else line)
    return "\n".join(lines)
