"""Reads what a process uses of the machine (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes(pid: int) -> int:
    """Returns the resident memory of a process (Linux), or 0 if the system does not report it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("VmRSS", "0 kB").split()[0]) * 1024


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process (Linux), or 0 if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
