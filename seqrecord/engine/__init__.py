"""Executes a plan in the background, and leaves nothing behind when it ends, however it ends."""

from seqrecord.engine.engine import (
    Engine,
)

__all__ = [
    "Engine",
]
