"""The list of all operations on data over HTTP, with their parameters and answers."""

from __future__ import annotations

from stream_node.doors.http.app import Endpoint
from stream_node.doors.http.data.openapi import BODIES, PAGES, HttpOperation, make_endpoint
from stream_node.doors.http.data.positions import (
    ConsumerPositions,
    ForgetQuery,
    PositionQuery,
    Saved,
    forget_position,
    save_position,
    show_positions,
)
from stream_node.doors.http.data.pull import MessagePage, MessageQuery, PullQuery, pull, pull_message
from stream_node.doors.http.data.push import Pushed, PushQuery, push
from stream_node.doors.http.data.query import NoQuery
from stream_node.doors.http.data.records import RAW
from stream_node.doors.http.data.streams import (
    ChangedStream,
    Deleted,
    ListQuery,
    NewStream,
    StreamDescription,
    StreamList,
    change,
    create,
    delete,
    describe,
    list_streams,
)

STREAMS = "/v1/streams"
STREAM = STREAMS + "/{name}"
CONSUMER = STREAM + "/consumers/{client_id}"

OPERATIONS: tuple[HttpOperation, ...] = (
    HttpOperation(
        Endpoint("POST", STREAM, push),
        "Push messages",
        PushQuery,
        Pushed,
        other_bodies=BODIES,
        description="A header Stream-Header-NAME: VALUE of the request is stored as the header NAME of each message.",
    ),
    HttpOperation(
        Endpoint("GET", STREAM, pull), "Read or follow messages", PullQuery, MessagePage, other_answers=PAGES
    ),
    HttpOperation(
        Endpoint("GET", STREAM + "/messages/{index}", pull_message),
        "Read the bytes of one message",
        MessageQuery,
        None,
        other_answers=(RAW,),
    ),
    HttpOperation(Endpoint("GET", STREAMS, list_streams), "List streams", ListQuery, StreamList),
    HttpOperation(Endpoint("GET", STREAM + "/info", describe), "Describe a stream", NoQuery, StreamDescription),
    HttpOperation(
        Endpoint("PUT", STREAM, create), "Create a stream", NoQuery, StreamDescription, NewStream, statuses=(200, 201)
    ),
    HttpOperation(Endpoint("PATCH", STREAM, change), "Change a stream", NoQuery, StreamDescription, ChangedStream),
    HttpOperation(Endpoint("DELETE", STREAM, delete), "Delete a stream", NoQuery, Deleted),
    HttpOperation(Endpoint("GET", CONSUMER, show_positions), "Read positions", NoQuery, ConsumerPositions),
    HttpOperation(Endpoint("PUT", CONSUMER, save_position), "Save a position", PositionQuery, Saved),
    HttpOperation(Endpoint("DELETE", CONSUMER, forget_position), "Forget a position", ForgetQuery, Saved),
)

ENDPOINTS: tuple[Endpoint, ...] = (*(each.endpoint for each in OPERATIONS), make_endpoint(OPERATIONS))
