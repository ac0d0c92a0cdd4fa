"""The errors of mirrors."""

from __future__ import annotations


class MirrorError(Exception):
    """Error: a mirror cannot do what it was asked for, or cannot follow its source. The base class of this package's
    errors."""


class SourceLost(MirrorError):
    """Error: the node with the source cannot be reached, or does not answer in time."""


class SourceRefused(MirrorError):
    """Error: the node with the source refuses a request of the mirror, for example for lack of a right."""


class Parted(MirrorError):
    """Error: the mirror has messages that its source does not have, so it cannot follow."""


class SourceGoesOn(MirrorError):
    """Error: a mirror is not promoted by force, because its source answers, would go on taking pushes beside it, and
    cannot become its mirror."""
