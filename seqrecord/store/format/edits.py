"""Edits: small durable records of changes to episodes and features after they were written.

The index already includes their effect. An index built anew applies them in order. The normative
text is docs/format.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from seqrecord.errors import FormatError
from seqrecord.store.format.manifest import (
    DICTIONARY_NAME,
    EDIT_PATH,
    MOST_FILES,
    RECORD_PATH,
    SPLIT_NAME,
)
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES
from seqrecord.store.format.text import (
    ID,
    check_key,
    encode_metadata,
    parse_json,
    parse_metadata,
    parse_schema,
)
from seqrecord.store.json_object import JsonObject
from seqrecord.store.schema import Schema
from seqrecord.store.text import repr_of

MAX_EDIT_BYTES = 1 << 25
EDIT_VERSION = 1


class Edit:
    """Base class of edits: `op` is the class's name, the other keys are its attributes."""

    def to_json(self) -> dict[str, Any]:
        return {"op": type(self).__name__.lower(), **vars(self)}


@dataclass(frozen=True)
class Delete(Edit):
    """Deletes episodes."""

    uids: tuple[str, ...]


@dataclass(frozen=True)
class Split(Edit):
    """Assigns episodes to a split; `None` removes them from theirs."""

    split: str | None
    uids: tuple[str, ...]


@dataclass(frozen=True)
class Rename(Edit):
    """Changes episode keys, by uid."""

    keys: Mapping[str, str]


@dataclass(frozen=True)
class Relabel(Edit):
    """Replaces the metadata of episodes, by uid. Each value is canonical JSON text of an object."""

    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Trim(Edit):
    """Limits episodes to the frames `[start, stop)` of the record files, by uid."""

    frames: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Features(Edit):
    """Replaces the dataset's schema: features were dropped, or added at the end."""

    schema: Schema

    def to_json(self) -> dict[str, Any]:
        return {"op": "features", "schema": self.schema.to_json()}


@dataclass(frozen=True)
class Texts(Edit):
    """Changes the text features of dictionaries, by the dictionary's name."""

    dictionaries: Mapping[str, str]


@dataclass(frozen=True)
class Reset(Edit):
    """Undoes edits: among earlier files of edits, only these count, by path.

    `left_out` are paths of record files that undone versions added.
    """

    edits: tuple[str, ...]
    left_out: tuple[str, ...]


_EDITS = {kind.__name__.lower(): kind for kind in Edit.__subclasses__()}


@dataclass(frozen=True)
class Edits:
    """Combined effect of consecutive edits.

    `deleted` are uids, `splits` the split by uid, `names` the split names in order of their first
    use. `keys`, `metadata` and `frames` are by uid, only for episodes that differ from their record
    files; `frames` are the frames `[start, stop)` of a trimmed episode. `dictionaries` are renamed
    text features by dictionary. `schema` is set if features were added, dropped or changed.
    `left_out` are paths of record files that undone versions added.
    """

    deleted: frozenset[str] = frozenset()
    splits: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dictionaries: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> Edits:
        deleted: set[str] = set()
        splits: dict[str, str] = {}
        names: dict[str, None] = {}
        by_name: dict[str, dict[str, Any]] = {
            name: {} for name in ("keys", "metadata", "frames", "dictionaries")
        }
        schema = None
        left_out: set[str] = set()
        for edit in edits:
            if isinstance(edit, Delete):
                deleted.update(edit.uids)
            elif isinstance(edit, Reset):  # undone edits are not in a manifest
                left_out.update(edit.left_out)
            elif isinstance(edit, Features):
                schema = edit.schema
            elif isinstance(edit, Split):
                for uid in edit.uids:
                    splits.pop(uid, None)
                if edit.split is not None:
                    names[edit.split] = None
                    splits.update(dict.fromkeys(edit.uids, edit.split))
            else:
                for name, values in vars(edit).items():
                    by_name[name].update(values)
        return cls(
            frozenset(deleted),
            splits,
            tuple(names),
            schema=schema,
            left_out=frozenset(left_out),
            **by_name,
        )


def valid_edits(files: Mapping[str, Sequence[Edit]]) -> list[str]:
    """Paths of the edit files that count where no manifest names them, in order.

    `files` are all files of edits by path. Paths may be among them that are missing.
    """
    valid: list[str] = []
    for path in sorted(files):
        for edit in files[path]:
            if isinstance(edit, Reset):
                valid = [*edit.edits]
        valid.append(path)
    return valid


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
    edits_json = JsonObject.of_file(parse_json(data), "edits", EDIT_VERSION, ["edits"])
    return [_edit(item) for item in edits_json.list("edits")]


def _edit(value: object) -> Edit:
    op = value.get("op") if isinstance(value, dict) else None
    if not isinstance(op, str) or op not in _EDITS:
        expected = f"an object with an op: {', '.join(_EDITS)}"
        raise FormatError("not an edit", expected=expected, got=repr_of(value))
    kind: Any = _EDITS[op]
    names = [field.name for field in fields(kind)]
    json_object = JsonObject(value, ("op", *names), f"an edit of op {op}")
    edit: Edit = kind(*(_value(json_object, name) for name in names))
    return edit


def _value(edit: JsonObject, name: str) -> Any:
    """Check a value of an edit by its name."""
    value = edit.value[name]
    if name == "schema":
        return parse_schema(value, "an edit")
    if name == "uids":
        return edit.texts("uids", ID)
    if name == "edits":
        return edit.texts("edits", EDIT_PATH, MOST_FILES)
    if name == "left_out":
        return edit.texts("left_out", RECORD_PATH, MOST_FILES)
    if name == "split":
        return None if value is None else edit.text("split", SPLIT_NAME)
    pattern, key_name = (DICTIONARY_NAME, "dictionary") if name == "dictionaries" else (ID, "uid")
    if not isinstance(value, dict) or not all(map(pattern.fullmatch, value)):
        raise FormatError("not an edit", expected=f"{name} by {key_name}", got=repr_of(value))
    checks = {"keys": check_key, "metadata": _metadata, "frames": _span, "dictionaries": _feature}
    return {key: checks[name](entry_value) for key, entry_value in value.items()}


def _feature(name: object) -> str:
    """Check the name of a text feature."""
    if isinstance(name, str) and DICTIONARY_NAME.fullmatch(name):
        return name
    raise FormatError("not an edit", expected=DICTIONARY_NAME.pattern, got=repr_of(name, 50))


def _metadata(text: object) -> str:
    return encode_metadata(parse_metadata(text))


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
