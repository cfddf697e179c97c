"""The inventory file: originals of a dataset, and data left out by its source.

JSON in the index folder, named by the manifest; docs/format.md, "Inventory".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from seqrecord.errors import FormatError, located
from seqrecord.store.format.manifest import IndexFile, read_named
from seqrecord.store.format.text import parse_json
from seqrecord.store.json_object import JsonObject
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import counted, printable

MAX_INVENTORY_BYTES = 1 << 16
MAX_INVENTORIES = 100

_TEXT = re.compile(r"[^\ud800-\udfff]{0,4000}", re.DOTALL)
_VERSION = 1
_MOST_LINES = 1 << 10  # more do not fit the file
_SHOWN_NAMES = 80  # characters of feature names in one line


@dataclass(frozen=True)
class LeftOut:
    """Data of an original that is not packed, grouped by pattern.

    Args:
        pattern: names of the files, topics or fields: `*.pose.txt`, `topic /camera/info`.
        count: number of `unit`.
        reason: the cause: `no reader`, `not selected by features=`.
        unit: plural noun for `count`: `files`, `messages`, `rows`.
        is_data: false if the caller asked to leave it out, or if it is certainly harmless. `strict`
            ignores such entries.

    Example:
        from seqrecord.sources import LeftOut

        print(LeftOut("*.pose.txt", 1, "no reader"))  # *.pose.txt: 1 file, no reader
    """

    pattern: str
    count: int
    reason: str
    unit: str = "files"
    is_data: bool = True

    def __str__(self) -> str:
        noun = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.pattern}: {self.count:,} {noun}, {self.reason}"


@dataclass(frozen=True)
class PackedFeature:
    """A feature of an original.

    `place` is its path or pattern there, `shape` the shape of a frame.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    kind: str | None
    unit: str | None
    place: str

    def __str__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self.shape)
        detail = ", ".join(filter(None, (self.kind, self.unit)))
        text = f"{self.name}  {self.dtype} [{shape}]"
        return (
            f"{text}{f'  {detail}' if detail else ''}{f'  from {self.place}' if self.place else ''}"
        )


@dataclass(frozen=True)
class Inventory:
    """A source's report on one original.

    Args:
        format: format name, as `--format` takes it.
        reason: evidence for this format.
        features: packed features.
        left_out: possible data that is not packed.
        notes: assumptions, and irregularities that the format allows.

    Example:
        from seqrecord.sources import Inventory, LeftOut

        skipped = LeftOut("*.txt", 2, "no reader")
        inventory = Inventory("folders", "an image per frame", left_out=(skipped,))
        print(*inventory.lines(), sep=", ")
    """

    format: str
    reason: str
    features: tuple[PackedFeature, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def left_out_data(self) -> tuple[LeftOut, ...]:
        """Data left out without the caller's request."""
        return tuple(row for row in self.left_out if row.is_data)

    def extended(self, *, left_out: Iterable[LeftOut] = (), notes: Iterable[str] = ()) -> Inventory:
        """Return the inventory with more entries at the end."""
        rows, texts = (*self.left_out, *left_out), (*self.notes, *notes)
        return replace(self, left_out=rows, notes=texts)

    def lines(self, most: int | None = None) -> list[str]:
        """Format the inventory as text, in at most `most` lines (at least 3).

        To save lines, features are first shortened to their names.
        """
        facts = [*self.left_out_data, *(row for row in self.left_out if not row.is_data)]
        remarks = [("left out", str(row)) for row in facts]
        remarks += [("note", note) for note in self.notes]
        rows = [("feature", str(feature)) for feature in self.features]
        if most is not None and 1 + len(rows) + len(remarks) > most:
            names = ", ".join(feature.name for feature in self.features)
            if len(names) > _SHOWN_NAMES:
                names = f"{names[:_SHOWN_NAMES]}…"
            rows = [("features", f"{len(self.features)}: {names}")]
        if most is not None and (excess := 1 + len(rows) + len(remarks) - most) > 0:
            remarks = remarks[: -excess - 1]
            remarks.append(("more", f"{counted(excess + 1, 'line')}; `seqrecord info` shows all"))
        lines = [("format", f"{self.format}: {self.reason}"), *rows, *remarks]
        return [f"{head:<9} {printable(text)}" for head, text in lines]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Inventory:
        """Inverse of `to_json`. Raises `FormatError` for invalid input."""
        keys = ("format", "reason", "features", "left_out", "notes")
        json_object = JsonObject(value, keys, "an inventory")
        return cls(
            json_object.text("format", _TEXT),
            json_object.text("reason", _TEXT),
            tuple(map(_feature, json_object.list("features"))),
            tuple(map(_left_out, json_object.list("left_out"))),
            json_object.texts("notes", _TEXT),
        )


def encode_inventories(inventories: Iterable[Inventory]) -> bytes:
    """Encode the inventory file. Long lists are shortened to fit 64 KiB."""
    entries = list(dict.fromkeys(map(_clean, inventories)))[-MAX_INVENTORIES:]
    while True:
        value = {
            "format": "seqrecord inventory",
            "version": _VERSION,
            "inventories": [inventory.to_json() for inventory in entries],
        }
        data = json.dumps(value, indent=1).encode() + b"\n"
        if len(data) <= MAX_INVENTORY_BYTES:
            return data
        entries = [*map(_shorten, entries)] if any(map(_is_long, entries)) else entries[1:]


def read_inventories(storage: Storage, file: IndexFile) -> tuple[Inventory, ...]:
    """Read a dataset's inventories, one for each original, oldest first.

    Raises `NotFoundError` if the file is missing, `FormatError` if it is damaged.
    """
    data = read_named(storage, file, "a file of inventories", MAX_INVENTORY_BYTES)
    with located(FormatError, file=f"{storage.url}/{file.path}"):
        file_json = JsonObject.of_file(parse_json(data), "inventory", _VERSION, ["inventories"])
        return tuple(map(Inventory.from_json, file_json.list("inventories", 0, MAX_INVENTORIES)))


def _is_long(inventory: Inventory) -> bool:
    return len(inventory.left_out) + len(inventory.notes) + len(inventory.features) > 8


def _shorten(inventory: Inventory) -> Inventory:
    """Return the inventory without the last quarter of its lists, with a note."""
    lengths = [
        min(len(rows) * 3 // 4, _MOST_LINES) for rows in (inventory.left_out, inventory.notes)
    ]
    left_out, notes = inventory.left_out[: lengths[0]], inventory.notes[: lengths[1]]
    remark = f"shortened to {MAX_INVENTORY_BYTES >> 10} KiB"
    return replace(
        inventory,
        features=inventory.features[: max(1, len(inventory.features) * 3 // 4)],
        left_out=left_out,
        notes=(*(note for note in notes if note != remark), remark),
    )


def _clean(inventory: Inventory) -> Inventory:
    """Escape invalid text: file names may have bytes that are not UTF-8."""
    return replace(
        inventory,
        format=_text(inventory.format),
        reason=_text(inventory.reason),
        features=tuple(replace(f, place=_text(f.place)) for f in inventory.features),
        left_out=tuple(
            replace(row, pattern=_text(row.pattern), reason=_text(row.reason))
            for row in inventory.left_out
        ),
        notes=tuple(map(_text, inventory.notes)),
    )


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:1000]


def _feature(value: object) -> PackedFeature:
    names = [field.name for field in fields(PackedFeature)]
    json_object = JsonObject(value, names, "a feature of an inventory")
    for key in ("name", "dtype", "place", "kind", "unit"):
        if json_object.value[key] is not None or key not in ("kind", "unit"):
            json_object.text(key, _TEXT)
    shape = json_object.list("shape", 0, 32)
    if not all(size is None or (type(size) is int and size >= 0) for size in shape):
        raise FormatError("an inventory's feature has an invalid shape", got=repr(shape)[:100])
    return PackedFeature(**{**json_object.value, "shape": tuple(shape)})


def _left_out(value: object) -> LeftOut:
    names = [field.name for field in fields(LeftOut)]
    json_object = JsonObject(value, names, "left-out data of an inventory")
    for key in ("pattern", "reason", "unit"):
        json_object.text(key, _TEXT)
    json_object.integer("count")
    if type(json_object.value["is_data"]) is not bool:
        raise FormatError("is_data of an inventory is not a bool")
    return LeftOut(**json_object.value)
