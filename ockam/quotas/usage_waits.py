"""UsageWaits: makes the connections of one identity wait while the identity exceeds a limit. It decides nothing."""

from __future__ import annotations

import trio

from ockam.quotas.usage import Usage


class UsageWaits:
    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._turn = trio.StrictFIFOLock()
        self._room: trio.Event | None = None

    async def wait_turn(self) -> None:
        # Only the first connection in the line looks at the time. So a thousand connections wake no oftener than one.
        async with self._turn:
            while True:
                delay_s, limit = self._usage.machine.delay_s(trio.current_time())
                if not delay_s:
                    return
                self._usage.note_wait(limit)
                await trio.sleep(delay_s)

    async def wait_room(self) -> None:
        machine = self._usage.machine
        if machine.is_over:
            self._usage.note_wait("in_flight_bytes_max")
        while machine.is_over:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def report_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None


def waits_of(usage: Usage) -> UsageWaits:
    if not isinstance(usage.waiting, UsageWaits):
        usage.waiting = UsageWaits(usage)
    return usage.waiting
