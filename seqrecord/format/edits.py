"""Edits: small durable records of what became of episodes after they were written.

The effect of an edit is in the index; whoever builds the index anew applies them in their order.
The normative text is docs/format.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqrecord.errors import FormatError
from seqrecord.format.manifest import SPLIT_NAME
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

_KEYS = {  # of an edit, by its op
    "delete": ("uids",),
    "split": ("uids", "split"),
    "rename": ("keys",),
    "relabel": ("metadata",),
    "features": ("schema",),
}


@dataclass(frozen=True)
class Delete:
    """These episodes are not in the dataset."""

    uids: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": "delete", "uids": list(self.uids)}


@dataclass(frozen=True)
class Split:
    """These episodes belong to the split of this name; `None` for none."""

    split: str | None
    uids: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": "split", "split": self.split, "uids": list(self.uids)}


@dataclass(frozen=True)
class Rename:
    """Episodes have these keys, by uid."""

    keys: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"op": "rename", "keys": dict(self.keys)}


@dataclass(frozen=True)
class Relabel:
    """Episodes have this metadata, by uid: each the canonical text of a JSON object."""

    metadata: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"op": "relabel", "metadata": dict(self.metadata)}


@dataclass(frozen=True)
class Features:
    """The dataset has these features: those it had, some of them dropped, or with others behind."""

    schema: Schema

    def to_json(self) -> dict[str, Any]:
        return {"op": "features", "schema": self.schema.to_json()}


Edit = Delete | Split | Rename | Relabel | Features


@dataclass(frozen=True)
class Edits:
    """What edits come to together: uids that are deleted, and the split of each uid that has one.

    `names` are the splits, in the order in which the edits name them first. `keys` and `metadata`
    are of the uids that have others than their record files say. `schema` are the features, where
    some were added or dropped.
    """

    deleted: frozenset[str] = frozenset()
    splits: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> Edits:
        deleted: set[str] = set()
        splits: dict[str, str] = {}
        names: dict[str, None] = {}
        keys: dict[str, str] = {}
        metadata: dict[str, str] = {}
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
            elif edit.split is None:
                for uid in edit.uids:
                    splits.pop(uid, None)
            else:
                names[edit.split] = None
                splits.update(dict.fromkeys(edit.uids, edit.split))
        return cls(frozenset(deleted), splits, tuple(names), keys, metadata, schema)


def encode_edit(edits: Sequence[Edit]) -> bytes:
    """A file of edits. `FormatError` for what no reader would take; then write several files."""
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
    """Inverse of `encode_edit`; trusts nothing."""
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
    uids = found.texts("uids", ID)
    if op == "delete":
        return Delete(uids)
    return Split(None if found.value["split"] is None else found.text("split", SPLIT_NAME), uids)


def _by_uid(edit: JsonObject, key: str) -> dict[str, Any]:
    """What an edit says of each uid."""
    found = edit.value[key]
    if not isinstance(found, dict) or not all(map(ID.fullmatch, found)):
        raise FormatError("not an edit", expected=f"{key} by uid", got=repr_of(found))
    return found
