"""The list of everything that the node answers about data over HTTP."""

from __future__ import annotations

from stream_node.http.app import Endpoint
from stream_node.http.data.pull import pull, pull_message
from stream_node.http.data.push import push

STREAM = "/v1/streams/{name}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", STREAM, push),
    Endpoint("GET", STREAM, pull),
    Endpoint("GET", STREAM + "/messages/{index}", pull_message),
)
