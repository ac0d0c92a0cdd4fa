"""The message header in which a publisher can report the time of an event."""

EVENT_TIME_HEADER = "event_time_us"
"""The name of the header. Its value is the time of the event: microseconds since 1970, in decimal digits."""
