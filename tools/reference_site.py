"""Makes `docs/llms.txt`, a line about each page, and lists the packages for programs with their names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = {
    "stream_client": "The client of streams, for asyncio and trio",
    "stream_client.blocking": "The same client for programs without an event loop",
    "block_node.client": "The client of blocks",
    "cardinal_streams": "Cardinal Streams",
    "block_manager": "A tree of blocks",
    "ockam": "Actors, routes and nodes of your own",
    "spark_export": "Spark and the exporter",
    "stream_node.testing": "Nodes inside a program, for tests",
    "bare": "The codec",
}
"""The packages for programs of users, each with what it is. Its page has the names of its `__all__`."""

PART = re.compile(r"  - (?P<name>[^:]+):(?: (?P<page>\S+\.md))?$")
PAGE = re.compile(r"      - (?:[^:]+: )?(?P<page>\S+\.md)$")
SENTENCE_END = re.compile(r"(?<=[.:])\s")


def nav(root: Path = ROOT) -> dict[str, list[str]]:
    """The parts of the site, each with the names of its pages in their order, as tools/mkdocs.yml says."""
    _, _, text = (root / "tools/mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    parts: dict[str, list[str]] = {}
    for line in text.splitlines():
        if part := PART.match(line):
            pages = parts.setdefault(part["name"], [])
            pages += [part["page"]] if part["page"] else []
        elif page := PAGE.match(line):
            pages.append(page["page"])
        else:
            raise SystemExit(
                f"reference: tools/mkdocs.yml has a line in its nav that is neither a part nor a page: {line}"
            )
    return parts


def summary(page: Path) -> tuple[str, str]:
    """The title of a page, and the first sentence of its text."""
    title, *paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    text = " ".join(paragraphs[0].split())
    return title.removeprefix("# ").strip(), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", SENTENCE_END.split(text)[0])


def llms_text() -> str:
    """The generated part of `docs/llms.txt`."""
    sections = []
    for part, pages in nav().items():
        lines = []
        for name in pages:
            title, text = summary(ROOT / "docs" / name)
            lines.append(f"- [{title}]({name}): {text}")
        sections.append(f"## {part}\n\n" + "\n".join(lines))
    return "\n\n".join(sections) + "\n"


def public_names(package: str) -> list[str]:
    """The names in the `__all__` of a package, as it lists them. The source is parsed and not imported."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise SystemExit(f"reference: {package} lists no names: it has no __all__")
