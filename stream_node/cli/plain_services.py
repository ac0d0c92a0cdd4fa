"""Notes which services have none of our own protocols, as those of real Ockam nodes, for the commands that follow.
A real service logs each request in one of these protocols as an error. So a command that finds such a service makes an
empty file in the user's folder for caches, and later commands ask only for common protocols. A command that finds our
protocols there removes the file. Removing it by hand does no harm."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_node.cli.contexts import Target

FOLDER = "plain-services"


def note_of(target: Target, service: str) -> Path:
    """Returns the path of the note about a stream service of this node. The file exists if the service is plain."""
    import platformdirs

    from stream_node.cli.contexts import APPLICATION

    place = "\n".join((target.address, *target.via, target.peer or "", service))
    return Path(platformdirs.user_cache_dir(APPLICATION)) / FOLDER / sha256(place.encode()).hexdigest()


def learn(note: Path, has_extensions: bool | None) -> None:
    """Makes or removes a note. has_extensions: whether the service has our own protocols; None: not found out."""
    # Without a place for notes, each command asks the service anew.
    with suppress(OSError):
        if has_extensions:
            note.unlink(missing_ok=True)
        elif has_extensions is False and not note.exists():
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
