"""A consumer's checkpoint in a file, for consumers that read no node. The file is replaced as a whole, so that it is
always one checkpoint, and the last one saved."""

from __future__ import annotations

import os
from pathlib import Path

from anyio import to_thread

from cardinal_streams.checkpoint_text import format_checkpoint, parse_checkpoint
from cardinal_streams.consumer_events import Checkpoint


class FileCheckpoints:
    """`CheckpointStore` in one file. Raises OSError, and `CheckpointError` for a file that is no checkpoint."""

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
        """Written beside, synced, put in place, and the folder synced: a kill leaves the old one or the new one."""
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
