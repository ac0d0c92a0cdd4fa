"""Data over HTTP: push, read and follow messages, keep positions, and administer streams.
Each handler uses an ordinary client of the node with the caller's identity (`doors.http.app.HttpCall.client`)."""
