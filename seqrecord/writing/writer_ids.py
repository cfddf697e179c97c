"""Ids of writers, and whose a file is by its name."""

from __future__ import annotations

import re
import secrets

__all__ = ["new_commit_id", "new_writer_id", "writer_of"]

_NAME = re.compile(
    r"(?:records/\d{5,}-([0-9a-f]{16})[0-9a-f]{16}\.seqrec"
    r"|records/([0-9a-f]{16})(?:[0-9a-f]{16})?\.(?:left|merge|clock)"
    r"|index/([0-9a-f]{16})(?:[0-9a-f]{16})?-[a-z0-9]+\.(?:arrow|json)"
    r"|edits/\d{8,}-([0-9a-f]{16})\.json)"
)


def new_writer_id() -> str:
    """What a writer's files and episodes have in common and no other writer's: 64 random bits."""
    return secrets.token_hex(8)


def new_commit_id(writer: str) -> str:
    """The id of a commit of this writer: its id, and 64 more random bits."""
    return writer + secrets.token_hex(8)


def writer_of(path: str) -> str | None:
    """The id of the writer of a file of a dataset, if its name has one."""
    match = _NAME.fullmatch(path)
    return match and match[match.lastindex or 0]
