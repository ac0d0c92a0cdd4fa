"""Tracing: OpenTelemetry spans of what a client and a node do with one push, sent to a collector over HTTP."""
