"""When a dataset was last verified without a problem: a small file beside its manifest."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from seqrecord.errors import ConflictError, FormatError, StorageError, TransientError
from seqrecord.format.text import ID, parse_json
from seqrecord.json_object import JsonObject
from seqrecord.storage import Storage

_PATH = "verified.json"
_MAX_BYTES = 4096


@dataclass(frozen=True)
class Verified:
    """The last time that all of a dataset was as it was written, and of which version.

    `time` is UTC, by the clock of the machine that looked; `deep` says that frames were decoded.
    """

    time: datetime
    version: str
    deep: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; times as ISO 8601."""
        return {**vars(self), "time": self.time.isoformat(timespec="seconds")}

    def shown(self, version: str) -> str:
        """The time, and what it was of, beside the dataset of `version`."""
        deep = ", all frames decoded" if self.deep else ""
        earlier = "" if self.version == version else ", an earlier version"
        return f"{self.time:%Y-%m-%d %H:%M} UTC{deep}{earlier}"


def read_verified(storage: Storage) -> Verified | None:
    """What the last `verify` that passed has recorded; `None` where nothing tells."""
    return _read(storage)[0]


def record_verified(storage: Storage, version: str, *, deep: bool) -> None:
    """Record that this version passed now. Raises `StorageError` where nothing can be written."""
    now = Verified(datetime.now(timezone.utc), version, deep)
    tag = _read(storage)[1]
    with suppress(ConflictError):  # by another one
        storage.put(_PATH, json.dumps(now.to_json()).encode(), expected=tag)


def _read(storage: Storage) -> tuple[Verified | None, str | None]:
    try:
        data, tag = storage.read_whole(_PATH, _MAX_BYTES)
    except TransientError:
        raise
    except StorageError:  # not there; or that is not told to who may not list
        return None, None
    try:
        found = JsonObject(parse_json(data), ("time", "version", "deep"), "what was verified")
        time = datetime.fromisoformat(str(found.value["time"])).astimezone(timezone.utc)
        return Verified(time, found.text("version", ID), found.value["deep"] is True), tag
    except (FormatError, ValueError, OverflowError):
        return None, tag
