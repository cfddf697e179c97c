"""A writer that stops as if it were killed, in this process."""

from __future__ import annotations

import threading

from seqrecord import SeqRecordWriter
from tests.services.process import wait_for

__all__ = ["abandon"]


def abandon(writer: SeqRecordWriter) -> None:
    """Nothing more is written, and what is open stays as it is."""
    writer._destination.release()
    names = "seqrecord-commit"  # of a thread that has not noticed
    wait_for(lambda: not any(each.name.startswith(names) for each in threading.enumerate()))
