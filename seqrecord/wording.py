"""Small matters of wording in what is printed."""

from __future__ import annotations

__all__ = ["counted", "one_line", "printable"]


def counted(count: int, noun: str) -> str:
    """`1 episode`, `1,200 episodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def one_line(message: object) -> str:
    """Its text without line breaks."""
    return " ".join(str(message).split())


def printable(text: str) -> str:
    """`text` with what would move a cursor or turn the line around as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
