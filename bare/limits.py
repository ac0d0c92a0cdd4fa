"""How much a codec is willing to handle. It counts nothing itself; the codecs do."""

from __future__ import annotations

import msgspec

# The default of go-bareish and of the buffer of bare-ts (facts 3.2).
MESSAGE_BYTES_MAX = 32 * 1024 * 1024

# Ours. go-bareish stops at 4096 items and 1024 entries, which a stream's pull answer passes. An item takes at
# least one byte of the message, so the message limit is the true bound; this one keeps what a message costs
# in memory near it, because an empty list in a list is one byte on the wire and some 64 bytes as Python
# objects.
LIST_ITEMS_MAX = 1024 * 1024
MAP_ENTRIES_MAX = 1024 * 1024

# Ours. All lists and maps of a message share this many items. Without this bound a message of nested lists may hold
# many lists of a million items each, and cost some 60 bytes of memory for each of its bytes.
ITEMS_MAX = 1024 * 1024

# Ours. One level costs at most a few Python frames, and the interpreter stops at 1000.
DEPTH_MAX = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds for one codec; every bound is inclusive.

    `list_items_max` and `map_entries_max` bound one list and one map. `items_max` bounds the items of all lists and the
    entries of all maps of one message together; lists of fixed length do not count, since their length belongs to the
    type.

    `depth_max` counts how often a type that contains itself is entered within itself. Types that cannot recur
    are as deep as they are written and are not counted.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    list_items_max: int = LIST_ITEMS_MAX
    map_entries_max: int = MAP_ENTRIES_MAX
    items_max: int = ITEMS_MAX
    depth_max: int = DEPTH_MAX

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound = getattr(self, name)
            if type(bound) is not int or bound < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {bound!r}")


LIMITS_DEFAULT = Limits()
