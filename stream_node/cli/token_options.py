"""The option --token-file and the variable STREAM_NODE_TOKEN, by which a command proves its name to a node.
There is no option with the token itself: every user of a machine can see the options of a running process."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stream_node.cli.options import named
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.identity.token import Token

VARIABLE = "STREAM_NODE_TOKEN"
TokenFileOption = Annotated[
    str | None,
    named(
        "--token-file",
        "FILE",
        "A file with your token, which proves to the node who you are. Or set STREAM_NODE_TOKEN to the token itself; "
        "no option takes it, because everybody on the machine can see the options of a process.",
    ),
]


def make_token(file: str | None) -> Token | None:
    """Returns the token of --token-file, otherwise that of STREAM_NODE_TOKEN; None if neither is given."""
    from ockam.identity.token import Token

    if file is not None:
        return Token(file=os.path.abspath(file))
    return Token(variable=VARIABLE) if os.environ.get(VARIABLE) else None


def kept_token_file(context: str) -> Path:
    """Returns the file in which a context stores its token, if the token was given by STREAM_NODE_TOKEN."""
    from stream_node.cli.contexts import contexts_file

    # A context may have any name, and a file may not.
    return contexts_file().with_name(f"token-{hashlib.sha256(context.encode()).hexdigest()[:16]}")


def keep_token(context: str, file: str | None) -> str | None:
    """Returns the path of the file with the token of a new context: that of --token-file, if it is given.
    Else writes the token of STREAM_NODE_TOKEN to a new private file. Returns None if there is neither. Raises
    UsageError, ContextError."""
    from ockam.files.durable_files import make_folder, write_durably
    from ockam.identity.token import Token, TokenError
    from stream_node.cli.contexts import ContextError

    try:
        if file is not None:
            Token(file=file).read()
            return os.path.abspath(file)
        if not os.environ.get(VARIABLE):
            return None
        # The variable is gone in the next shell, so its token is stored beside the contexts.
        kept = kept_token_file(context)
        text = Token(variable=VARIABLE).read()
    except TokenError as error:
        raise UsageError(str(error)) from error
    try:
        make_folder(kept.parent)
        write_durably(kept, f"{text}\n".encode(), mode=0o600)
    except OSError as error:
        raise ContextError(f"cannot write the token to {kept}: {error.strerror or error}") from error
    return str(kept)
