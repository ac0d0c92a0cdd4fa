"""Makes the generated part of `docs/metrics.md` from the list of the metrics; `tools/reference.py` writes it."""

from __future__ import annotations

from stream_node.doors.metrics.catalogue import GROUPS


def metrics_page() -> str:
    """The tables of all metrics, one for each group."""
    parts = []
    for group, metrics in GROUPS.items():
        rows = [
            f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{name}`' for name in metric.labels)} | {metric.text} |"
            for metric in metrics
        ]
        head = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {group}", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"
