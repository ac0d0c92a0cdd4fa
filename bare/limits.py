"""The limits on the size and depth of messages. The codecs enforce the limits; this module only defines them."""

from __future__ import annotations

import msgspec

# The default limit of go-bareish, and of the buffer of bare-ts (facts 3.2).
MESSAGE_BYTES_MAX = 32 * 1024 * 1024

# Our own limits. go-bareish allows 4096 items and 1024 entries, which is too few for the answer to a pull from a
# stream. These limits keep the use of memory low: an empty list in a list takes one byte on the wire, but about 64
# bytes as Python objects.
LIST_ITEMS_MAX = 1024 * 1024
MAP_ENTRIES_MAX = 1024 * 1024

# Our own limit on the total number of items in all lists and maps of a message. Without this limit, a message of nested
# lists could have many lists of a million items each. Such a message would take about 60 bytes of memory for each byte.
ITEMS_MAX = 1024 * 1024

# Our own limit on the nesting of values. One level takes at most a few Python stack frames, and the interpreter allows
# 1000 frames.
DEPTH_MAX = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one codec. Every limit is inclusive.

    message_bytes_max: the size of one message in bytes.
    list_items_max: the number of items of one list.
    map_entries_max: the number of entries of one map.
    items_max: the number of items of all lists and entries of all maps of one message together. Lists of fixed length
        are not counted, because the type defines their length.
    depth_max: how deep values of a type that contains itself can be nested in each other. Other types are not counted,
        because the schema fixes their depth."""

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
