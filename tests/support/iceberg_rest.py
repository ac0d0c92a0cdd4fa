"""A catalog server that speaks Iceberg's REST protocol (rest-catalog-open-api.yaml), over pyiceberg's SQL catalog.

It has the requests that creating, loading and changing tables need. No package of PyPI runs such a server here without
Docker or a database server. It can lose the answer to a commit, as a network does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalog:
    """The server of `running_rest_catalog`. uri: its address. lost: how many of the next answers to commits are lost.
    headers: those of the requests, in order. commits: how many commits were made."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self.uri = ""
        self.lost = 0
        self.commits = 0
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Returns the status and the content."""
        with self._lock:
            try:
                return self._answer(method, [unquote(part) for part in path.strip("/").split("/")], body)
            except tuple(STATUS) as error:
                code = STATUS[type(error)]
                return code, {"error": {"message": str(error), "type": type(error).__name__, "code": code}}

    def _answer(self, method: str, parts: list[str], body: bytes) -> tuple[int, Any]:
        match (method, parts):
            case ("GET", ["v1", "config"]):
                return 200, {"defaults": {}, "overrides": {}}
            case ("POST", ["v1", "namespaces"]):
                content = json.loads(body)
                self.catalog.create_namespace(tuple(content["namespace"]), content.get("properties") or {})
                return 200, {"namespace": content["namespace"], "properties": {}}
            case ("GET" | "HEAD", ["v1", "namespaces", namespace]):
                found = self.catalog.load_namespace_properties(namespace)
                return 200, {"namespace": [namespace], "properties": found}
            case ("POST", ["v1", "namespaces", namespace, "tables"]):
                asked = CreateTableRequest.model_validate_json(body)
                made = self.catalog.create_table((namespace, asked.name), asked.table_schema, location=asked.location)
                return 200, _described(made.metadata_location, made.metadata)
            case ("GET" | "HEAD", ["v1", "namespaces", namespace, "tables", name]):
                table = self.catalog.load_table((namespace, name))
                return 200, _described(table.metadata_location, table.metadata)
            case ("POST", ["v1", "namespaces", namespace, "tables", name]):
                change = CommitTableRequest.model_validate_json(body)
                table = self.catalog.load_table((namespace, name))
                done = self.catalog.commit_table(table, change.requirements, change.updates)
                self.commits += 1
                if self.lost:
                    self.lost -= 1
                    return 504, {"error": {"message": "the answer is late", "type": "Timeout", "code": 504}}
                return 200, _described(done.metadata_location, done.metadata)
        return 404, {"error": {"message": "/".join(parts), "type": "NoSuchEndpoint", "code": 404}}


def _described(location: str, metadata: Any) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": json.loads(metadata.model_dump_json()), "config": {}}


@contextmanager
def running_rest_catalog(folder: Path, **properties: str) -> Iterator[RestCatalog]:
    """A server over a catalog in this folder. properties: of the files of tables, such as s3.endpoint."""
    served = RestCatalog(SqlCatalog("served", uri=f"sqlite:///{folder / 'served.sqlite'}", **properties))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            served.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, content = served.answer(self.command, urlsplit(self.path).path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_DELETE = _handle

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    served.uri = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        served.catalog.close()
