"""Record of the last successful `verify`: a small file beside the manifest."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from seqrecord.errors import (
    ConflictError,
    DestinationError,
    FormatError,
    StorageError,
    TransientError,
)
from seqrecord.format.text import ID, parse_json
from seqrecord.json_object import JsonObject
from seqrecord.storage import Storage

_PATH = "verified.json"
_MAX_BYTES = 4096


@dataclass(frozen=True)
class LastVerified:
    """Time and version of the last `verify` without problems.

    `time` is UTC, by the clock of the verifying machine. `deep` is whether frames were decoded.
    """

    time: datetime
    version: str
    deep: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; times as ISO 8601."""
        return {**vars(self), "time": self.time.isoformat(timespec="seconds")}

    def shown(self, version: str) -> str:
        """Format the time, with a remark if the current `version` is another."""
        deep = ", all frames decoded" if self.deep else ""
        earlier = "" if self.version == version else ", an earlier version"
        return f"{self.time:%Y-%m-%d %H:%M} UTC{deep}{earlier}"


def read_last_verified(storage: Storage) -> LastVerified | None:
    """Read the last successful `verify`; `None` if unknown."""
    return _read(storage)[0]


def record_verified(storage: Storage, version: str, *, deep: bool) -> None:
    """Record a successful `verify` of this version.

    Raises `StorageError` if writing fails, and `DestinationError` for another program's file.
    """
    now = LastVerified(datetime.now(timezone.utc), version, deep)
    last, tag = _read(storage)
    if tag is not None and last is None:
        raise DestinationError("another program's file, or damaged: remove it", file=_PATH)
    with suppress(ConflictError):  # a concurrent verify
        storage.put(_PATH, json.dumps(now.to_json()).encode(), expected=tag)


def _read(storage: Storage) -> tuple[LastVerified | None, str | None]:
    try:
        data, tag = storage.read_whole(_PATH, _MAX_BYTES)
    except TransientError:
        raise
    except StorageError:  # missing, or no permission to list
        return None, None
    try:
        found = JsonObject(parse_json(data), ("time", "version", "deep"), "what was verified")
        time = datetime.fromisoformat(str(found.value["time"])).astimezone(timezone.utc)
        return LastVerified(time, found.text("version", ID), found.value["deep"] is True), tag
    except (FormatError, ValueError, OverflowError):
        return None, tag
