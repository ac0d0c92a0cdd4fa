"""Reloading: reads the settings and the other files of a running node again, at SIGHUP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
import trio

from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import check_start, load_config
from stream_node.node.notify import Notifier
from stream_node.node.server import Server

logger = structlog.get_logger(__name__)


def may_have_files(config: Config, *, has_file: bool, notifier: Notifier) -> bool:
    """Whether a node may have a file that can be read again: settings, certificates, rules or an audit log."""
    # A service manager sends SIGHUP only to make the node read files, whichever it has.
    return has_file or notifier.is_active or config.tls_certificate is not None or config.access_rules is not None


class Reloading:
    """Reads the files of one running node again. If a file is not valid, its earlier content stays in force.
    flags: the settings of the command line, which replace those of the file here, too."""

    def __init__(self, server: Server, flags: Mapping[str, Any], file: Path | None, notifier: Notifier) -> None:
        self._server = server
        self._notifier = notifier
        self._flags = dict(flags)
        self._file = file
        self._one_at_a_time = trio.Lock()

    @property
    def has_files(self) -> bool:
        return may_have_files(self._server.config, has_file=self._file is not None, notifier=self._notifier)

    async def reload(self) -> None:
        """Reads all files again. Waits until the node listens: before that, it still reads them for the first time."""
        await self._server.wait_listening()
        async with self._one_at_a_time:
            self._notifier.reloading()
            try:
                if self._file is not None:
                    await self._reload_settings(self._file)
                self._server.reload()
            finally:
                self._notifier.ready()

    async def _reload_settings(self, file: Path) -> None:
        try:
            # The settings can name large files, so they are read and checked in a thread.
            wanted = await trio.to_thread.run_sync(self._load)
        except ConfigError as error:
            for mistake in error.mistakes:
                logger.error("settings_not_taken", file=str(file), reason=mistake)
            return
        except RuntimeError as error:
            # The system has no room for one more thread.
            logger.error("settings_not_taken", file=str(file), reason=str(error))
            return
        self._server.change_settings(wanted, str(file))

    def _load(self) -> Config:
        config = load_config(self._flags, file=self._file)
        # A mistake that would stop the next start is logged now, while somebody looks.
        check_start(config)
        return config
