"""Goal: a system without room for one more thread ends no node that reads its files again.

Method: what runs in the thread raises what trio raises then, once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.identity.tls import ServerTls
from stream_node.node.identity import tls_settings
from stream_node.node.identity.tls_settings import TlsWatch
from stream_node.node.notify import Notifier
from stream_node.node.reloading import Reloading
from tests.support.served import PATIENCE_S, served
from tests.tls.keys import Keys


async def test_a_look_at_the_certificates_is_taken_again(own_keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_settings, "CHECK_INTERVAL_S", 0.01)
    looks = []

    def look(tls: ServerTls, *, changed_only: bool) -> bool:
        looks.append(changed_only)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        return False

    monkeypatch.setattr(ServerTls, "reload", look)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            watch = TlsWatch(ServerTls(own_keys.files()), lambda: None)
            nursery.start_soon(watch.run)
            while len(looks) < 2:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_settings_that_could_not_be_read_are_read_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("streams_max = 7\n")
    async with served(tmp_path / "data") as running:
        reloading = Reloading(running.server, {"insecure": True}, file, Notifier({}))

        def fail(reloading: Reloading) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(Reloading, "_load", fail)
            await reloading.reload()
        assert running.server.config.streams_max != 7
        await reloading.reload()
        assert running.server.config.streams_max == 7
