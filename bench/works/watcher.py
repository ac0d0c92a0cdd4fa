"""Watches a node over HTTP as operators do: Prometheus, a browser with the dashboard, and a follower of one stream.

    python -m bench.works.watcher HOST:PORT STREAM

Each line `watch` or `rest` on the standard input begins or ends the watching; the program answers with the same line
when it has done so. It ends with the input, and fails if the node refuses a request.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from threading import Event, Thread

SCRAPE_S = 5.0
"""As in deploy/prometheus/prometheus.yml."""
REFRESH_S = 2.0
"""As the overview of the dashboard refreshes itself."""
ANSWER_S = 30.0


def fetch(node: str, *paths: str) -> None:
    """Fetches pages over one connection."""
    connection = http.client.HTTPConnection(node, timeout=ANSWER_S)
    for path in paths:
        connection.request("GET", path, headers={"hx-request": "true"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.OK:
            raise SystemExit(f"GET {path}: {answer.status} {answer.reason}")
    connection.close()


def dashboard_paths() -> tuple[str, ...]:
    """The paths that an open overview fetches regularly: its figures, and the new points of its charts."""
    return "/dashboard", f"/dashboard/rates?after={time.time() - REFRESH_S}"


class Watching:
    """The three watchers, which begin when this object is made. Each has a thread and connections of its own."""

    def __init__(self, node: str, stream: str) -> None:
        self._ended = Event()
        self._follower = http.client.HTTPConnection(node, timeout=ANSWER_S)
        self._follower.request("GET", f"/v1/streams/{stream}?from=latest", headers={"accept": "text/event-stream"})
        events = self._follower.getresponse()
        if events.status != http.client.OK:
            raise SystemExit(f"following {stream}: {events.status} {events.reason}")
        self._threads = [
            Thread(target=self._follow, args=(events,)),
            Thread(target=self._repeat, args=(SCRAPE_S, lambda: fetch(node, "/metrics"))),
            Thread(target=self._repeat, args=(REFRESH_S, lambda: fetch(node, *dashboard_paths()))),
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Ends all three, and waits until they have ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._follower.close()

    def _repeat(self, every_s: float, work: Callable[[], None]) -> None:
        """Works at once and then after each pause of `every_s` seconds, until the end."""
        while True:
            work()
            if self._ended.wait(every_s):
                return

    def _follow(self, events: http.client.HTTPResponse) -> None:
        """Reads lines until the end. The stream must get messages, so that this thread notices the end soon."""
        while not self._ended.is_set() and events.readline():
            pass


def main() -> None:
    node, stream = sys.argv[1:]
    watching: Watching | None = None
    for line in sys.stdin:
        if line == "watch\n":
            watching = Watching(node, stream)
        elif watching is not None:
            watching.end()
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
