"""The header in which a publisher may state when an event happened."""

EVENT_TIME_HEADER = "event_time_us"
"""The time of the event: microseconds since 1970, in decimal digits."""
