"""The pipeline's tests need the extra `spark`, but those of its pure parts."""

from __future__ import annotations

from importlib.util import find_spec

if not all(map(find_spec, ("pyarrow", "pyspark", "aiosqlite"))):
    collect_ignore_glob = ["test_pipeline.py"]
