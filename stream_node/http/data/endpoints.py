"""The list of everything that the node answers about data over HTTP."""

from __future__ import annotations

from stream_node.http.app import Endpoint
from stream_node.http.data.positions import forget_position, save_position, show_positions
from stream_node.http.data.pull import pull, pull_message
from stream_node.http.data.push import push
from stream_node.http.data.streams import change, create, delete, describe, list_streams

STREAM = "/v1/streams/{name}"
CONSUMER = STREAM + "/consumers/{client_id}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", STREAM, push),
    Endpoint("GET", STREAM, pull),
    Endpoint("GET", STREAM + "/messages/{index}", pull_message),
    Endpoint("GET", "/v1/streams", list_streams),
    Endpoint("GET", STREAM + "/info", describe),
    Endpoint("PUT", STREAM, create),
    Endpoint("PATCH", STREAM, change),
    Endpoint("DELETE", STREAM, delete),
    Endpoint("GET", CONSUMER, show_positions),
    Endpoint("PUT", CONSUMER, save_position),
    Endpoint("DELETE", CONSUMER, forget_position),
)
