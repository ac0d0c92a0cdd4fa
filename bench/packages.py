"""Installs the packages that only the bench needs, each into a folder of its own, so that nothing else finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PYBARE = "pybare==1.3.0"
REDIS = "redis==8.1.0"
NATS = "nats-py==2.16.0"
INSTALL_TIMEOUT_S = 120.0


def maybe_install(requirement: str, place: Path) -> Path | None:
    """The folder under `place` that has the package, installed if need be; None if it cannot be installed."""
    folder = place / requirement.partition("=")[0]
    if folder.exists():
        return folder
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*install, "--target", str(folder), requirement],
            capture_output=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return None
    return folder if done.returncode == 0 else None
