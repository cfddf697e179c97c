"""Edits: small durable records of changes to episodes and features after they were written.

The index already includes their effect. An index built anew applies them in order. The normative
text is docs/format.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqrecord.errors import FormatError
from seqrecord.format.manifest import SPLIT_NAME
from seqrecord.format.rows import MAX_EPISODE_FRAMES
from seqrecord.format.text import (
    ID,
    check_key,
    encode_metadata,
    parse_json,
    parse_metadata,
    parse_schema,
)
from seqrecord.json_object import JsonObject
from seqrecord.schema import Schema
from seqrecord.text import repr_of

MAX_EDIT_BYTES = 1 << 25
EDIT_VERSION = 1

_KEYS = {  # keys of an edit beside `op`, by op
    "delete": ("uids",),
    "split": ("uids", "split"),
    "rename": ("keys",),
    "relabel": ("metadata",),
    "trim": ("frames",),
    "features": ("schema",),
}


@dataclass(frozen=True)
class Delete:
    """Deletes episodes."""

    uids: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": "delete", "uids": list(self.uids)}


@dataclass(frozen=True)
class Split:
    """Assigns episodes to a split; `None` removes them from theirs."""

    split: str | None
    uids: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": "split", "split": self.split, "uids": list(self.uids)}


@dataclass(frozen=True)
class Rename:
    """Changes episode keys, by uid."""

    keys: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"op": "rename", "keys": dict(self.keys)}


@dataclass(frozen=True)
class Relabel:
    """Replaces the metadata of episodes, by uid. Each value is canonical JSON text of an object."""

    metadata: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"op": "relabel", "metadata": dict(self.metadata)}


@dataclass(frozen=True)
class Trim:
    """Limits episodes to the frames `[start, stop)` of the record files, by uid."""

    frames: Mapping[str, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        return {"op": "trim", "frames": {uid: list(span) for uid, span in self.frames.items()}}


@dataclass(frozen=True)
class Features:
    """Replaces the dataset's schema: features were dropped, or added at the end."""

    schema: Schema

    def to_json(self) -> dict[str, Any]:
        return {"op": "features", "schema": self.schema.to_json()}


Edit = Delete | Split | Rename | Relabel | Trim | Features


@dataclass(frozen=True)
class Edits:
    """Combined effect of a sequence of edits.

    `deleted` are uids, `splits` the split by uid, `names` the split names in order of their first
    use. `keys`, `metadata` and `frames` are by uid, only for episodes that differ from their record
    files; `frames` are the frames `[start, stop)` of a trimmed episode. `schema` is set if features
    were added, dropped or changed.
    """

    deleted: frozenset[str] = frozenset()
    splits: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    schema: Schema | None = None

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> Edits:
        deleted: set[str] = set()
        splits: dict[str, str] = {}
        names: dict[str, None] = {}
        keys: dict[str, str] = {}
        metadata: dict[str, str] = {}
        frames: dict[str, tuple[int, int]] = {}
        schema = None
        for edit in edits:
            if isinstance(edit, Delete):
                deleted.update(edit.uids)
            elif isinstance(edit, Features):
                schema = edit.schema
            elif isinstance(edit, Rename):
                keys.update(edit.keys)
            elif isinstance(edit, Relabel):
                metadata.update(edit.metadata)
            elif isinstance(edit, Trim):
                frames.update(edit.frames)
            elif edit.split is None:
                for uid in edit.uids:
                    splits.pop(uid, None)
            else:
                names[edit.split] = None
                splits.update(dict.fromkeys(edit.uids, edit.split))
        return cls(frozenset(deleted), splits, tuple(names), keys, metadata, frames, schema)


def encode_edit(edits: Sequence[Edit]) -> bytes:
    """Encode a file of edits.

    Raises `FormatError` if it would be too large; write several files then.
    """
    value = {
        "format": "seqrecord edits",
        "version": EDIT_VERSION,
        "edits": [edit.to_json() for edit in edits],
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    if len(data) > MAX_EDIT_BYTES:
        raise FormatError(
            "too many edits for one file",
            expected=f"at most {MAX_EDIT_BYTES} bytes",
            got=len(data),
        )
    parse_edit(data)
    return data


def parse_edit(data: bytes) -> list[Edit]:
    """Inverse of `encode_edit`. Validates all input."""
    found = JsonObject.of_file(parse_json(data), "edits", EDIT_VERSION, ["edits"])
    return [_edit(item) for item in found.list("edits")]


def _edit(value: object) -> Edit:
    op = value.get("op") if isinstance(value, dict) else None
    if not isinstance(op, str) or op not in _KEYS:
        expected = f"an object with an op: {', '.join(_KEYS)}"
        raise FormatError("not an edit", expected=expected, got=repr_of(value))
    found = JsonObject(value, ("op", *_KEYS[op]), f"an edit of op {op}")
    if op == "features":
        return Features(parse_schema(found.value["schema"], "an edit"))
    if op == "rename":
        return Rename({uid: check_key(key) for uid, key in _by_uid(found, "keys").items()})
    if op == "relabel":
        texts = _by_uid(found, "metadata")
        return Relabel({uid: encode_metadata(parse_metadata(text)) for uid, text in texts.items()})
    if op == "trim":
        return Trim({uid: _span(span) for uid, span in _by_uid(found, "frames").items()})
    uids = found.texts("uids", ID)
    if op == "delete":
        return Delete(uids)
    return Split(None if found.value["split"] is None else found.text("split", SPLIT_NAME), uids)


def _span(value: object) -> tuple[int, int]:
    """Check the frames `[start, stop)` of a trimmed episode."""
    if isinstance(value, list) and [*map(type, value)] == [int, int]:
        start, stop = value
        if 0 <= start < stop <= MAX_EPISODE_FRAMES:
            return start, stop
    raise FormatError(
        "not an edit",
        expected=f"frames as start and stop, 0 <= start < stop <= {MAX_EPISODE_FRAMES}",
        got=repr_of(value),
    )


def _by_uid(edit: JsonObject, key: str) -> dict[str, Any]:
    """Return an edit's dict with uids as keys."""
    found = edit.value[key]
    if not isinstance(found, dict) or not all(map(ID.fullmatch, found)):
        raise FormatError("not an edit", expected=f"{key} by uid", got=repr_of(found))
    return found
