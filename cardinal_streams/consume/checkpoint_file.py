"""Saves the checkpoint of a consumer in a file."""

from __future__ import annotations

import os
from pathlib import Path

from anyio import to_thread

from cardinal_streams.consume.checkpoint_text import format_checkpoint, parse_checkpoint
from cardinal_streams.machines.consumer_events import Checkpoint
from ockam.files.durable_files import write_durably


class FileCheckpoints:
    """A `CheckpointStore` in one file, for consumers that do not read from a node. Each save replaces the file as a
    whole and durably. Raises OSError, and `CheckpointError` if the file has no valid checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    async def load(self) -> Checkpoint | None:
        return await to_thread.run_sync(self._load)

    async def save(self, checkpoint: Checkpoint) -> None:
        await to_thread.run_sync(self._save, format_checkpoint(checkpoint))

    def _load(self) -> Checkpoint | None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        return parse_checkpoint(text)

    def _save(self, text: bytes) -> None:
        write_durably(self.path, text)
