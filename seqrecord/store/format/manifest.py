"""The manifest: the small JSON file that makes record files and an index a dataset.

Its last 26 bytes contain the CRC32C of all bytes before them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seqrecord.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    StorageError,
    TransientError,
    VersionError,
    located,
)
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.footer import MAX_ORDINAL, RECORDS
from seqrecord.store.format.rows import table_names
from seqrecord.store.format.text import ID, parse_json, parse_schema
from seqrecord.store.json_object import JsonObject
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import repr_of

MANIFEST = "manifest.json"
INDEX = "index"  # folder of the tables
EDITS = "edits"  # folder of the edits
VERSIONS = "manifests"  # folder of replaced manifests
DICTIONARIES = "dictionaries"  # folder of dictionaries, which are datasets
KEPT_VERSIONS = 10  # number of replaced manifests kept
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 25
MAX_RECORD_FILES = MOST_FILES = 200_000
MAX_EPISODES = 2**31 - 1
MAX_CREATED_BY_LENGTH = 200
MAX_SPLITS = 4096
MAX_DICTIONARIES = 100
MAX_EARLIER_COMMITS = 100
MAX_COMMAND_LENGTH = 1000

RECORD_PATH = re.compile(r"records/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.seqrec")
_INDEX_PATH = re.compile(r"index/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.arrow")
_STATISTICS_PATH = re.compile(r"index/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.json")
EDIT_PATH = re.compile(r"edits/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.json")
_IN_INDEX = re.compile(f"{_INDEX_PATH.pattern}|{_STATISTICS_PATH.pattern}")
FILE_PATH = re.compile(
    "|".join(p.pattern for p in (RECORD_PATH, _INDEX_PATH, _STATISTICS_PATH, EDIT_PATH))
)
DICTIONARY_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9_])?")
SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_CRC = re.compile(r"[0-9a-f]{8}")
_LIST_ID = re.compile(r"[0-9a-f]{16}")
_CONTENT = re.compile(r"[\x20-\x7e]{0,200}")
_CREATED_BY = re.compile(rf"[\x20-\x7e]{{0,{MAX_CREATED_BY_LENGTH}}}")
_COMMAND = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{MAX_COMMAND_LENGTH}}}")
_END = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n')
_END_BYTES = 26
_FIELDS = (  # of the JSON object, in this order
    *("created_by", "num_episodes", "num_frames", "next_ordinal", "fingerprint", "schema"),
    *("index", "record_files", "splits", "statistics", "edits", "inventory", "copied"),
    *("dictionaries", "left_out", "removed", "command", "commit", "earlier_commits", "superseded"),
)
_OPTIONAL = {"inventory", "copied", "dictionaries", "command"}
_KEYS = {"format", "version", *_FIELDS, "crc32c"} - _OPTIONAL


@dataclass(frozen=True)
class RecordFile:
    """A record file: path, size in bytes, id in its header."""

    path: str
    size: int
    file_id: str


@dataclass(frozen=True)
class IndexFile:
    """A small file: path, size in bytes, CRC32C in hexadecimal."""

    path: str
    size: int
    crc32c: str


@dataclass(frozen=True)
class StatisticsFile(IndexFile):
    """A file of statistics, and whether they list episodes with NaN or infinities."""

    non_finite: bool = False


@dataclass(frozen=True)
class CopiedFiles:
    """External files whose values an index copied, as ids of their lists.

    `content` is an identity of the source that does not change while episodes are only added; empty
    if unknown.
    """

    lists: tuple[str, ...]
    content: str = ""


@dataclass(frozen=True)
class Dictionary:
    """Values of a text feature's texts, each stored once, in a dataset of their own.

    `name` is the name of the values, and of the dataset's folder and feature; `text` is the text
    feature, of this dataset or a joined one.
    """

    name: str
    text: str

    @property
    def folder(self) -> str:
        """Path of its dataset."""
        return f"{DICTIONARIES}/{self.name}"


@dataclass(frozen=True)
class Manifest:
    """Contents of a dataset: schema, record files, index.

    `fingerprint` identifies equal content, independent of record file boundaries. `index` has the
    tables by the names of `table_names`. `splits` are the split names, in the order of the index's
    numbers. `statistics` and `inventory` are optional files. `edits` are edit files in order; the
    index includes their effect. `copied` are external files whose values were copied.
    `dictionaries` are values of texts.

    The other fields are for writers. New episodes get ordinals from `next_ordinal`. `left_out` are
    uids of complete episodes that are not in the dataset because another has the same key.
    `removed` are paths of files to be deleted by `clean` and never recovered. `command` is the call
    of the edit that made this version, or empty. `commit` is this commit's id, `earlier_commits`
    are the preceding ids, newest first. `superseded` are index files that the preceding manifest
    named and this one does not; the next commit deletes them.
    """

    schema: Schema
    record_files: tuple[RecordFile, ...]
    index: Mapping[str, IndexFile]
    num_episodes: int
    num_frames: int
    fingerprint: str
    created_by: str
    splits: tuple[str, ...] = ()
    statistics: StatisticsFile | None = None
    edits: tuple[IndexFile, ...] = ()
    inventory: IndexFile | None = None
    copied: CopiedFiles | None = None
    dictionaries: tuple[Dictionary, ...] = ()
    next_ordinal: int = 0
    left_out: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    command: str = ""
    commit: str = field(default_factory=lambda: secrets.token_hex(16))
    earlier_commits: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()

    @property
    def file_sizes(self) -> dict[str, int]:
        """Bytes of the record files, by path."""
        return {file.path: file.size for file in self.record_files}

    def encode(self) -> bytes:
        """Encode the manifest as JSON text."""
        value: dict[str, Any] = {"format": "seqrecord", "version": MANIFEST_VERSION}
        value |= {name: _to_plain(getattr(self, name)) for name in _FIELDS}
        value["schema"] = self.schema.to_json()
        value["index"] = {
            "episodes": asdict(self.index["episodes"]),
            "gaps": asdict(self.index["gaps"]),
            "chunks": [asdict(self.index[f"chunks{n}"]) for n in range(self.schema.num_groups)],
            **({"times": asdict(self.index["times"])} if "times" in self.index else {}),
        }
        if self.statistics is not None and not self.statistics.non_finite:
            del value["statistics"]["non_finite"]
        for name in _OPTIONAL:
            if not value[name]:
                del value[name]
        text = json.dumps(value, indent=1).removesuffix("\n}").encode()
        return text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)

    @property
    def value_names(self) -> list[str]:
        """The names of features and dictionaries."""
        return [*self.schema.active, *(dictionary.name for dictionary in self.dictionaries)]

    @property
    def small_files(self) -> tuple[IndexFile, ...]:
        """All named files except record files."""
        optional_files = (file for file in (self.statistics, self.inventory) if file is not None)
        return (*self.index.values(), *optional_files, *self.edits)

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Inverse of `encode`. Validates all input."""
        value = parse_json(data)
        if not isinstance(value, dict) or value.get("format") != "seqrecord":
            raise FormatError("not a manifest of a seqrecord dataset")
        version = value.get("version")
        if type(version) is not int or version != MANIFEST_VERSION:  # neither true nor 1.0
            raise VersionError(
                "an unknown manifest version; a newer seqrecord may read it",
                expected=MANIFEST_VERSION,
                got=repr_of(version, 50),
            )
        _check_end(data)
        fields = JsonObject(value, _KEYS, "the manifest", optional=_OPTIONAL)
        schema = parse_schema(value["schema"], "the manifest")
        statistics, inventory = value["statistics"], value.get("inventory")
        manifest = cls(
            schema=schema,
            record_files=tuple(map(_record_file, fields.list("record_files", 1, MAX_RECORD_FILES))),
            index=_index(value["index"], schema),
            num_episodes=fields.integer("num_episodes", maximum=MAX_EPISODES),
            num_frames=fields.integer("num_frames"),
            fingerprint=fields.text("fingerprint", _FINGERPRINT),
            created_by=fields.text("created_by", _CREATED_BY),
            splits=fields.texts("splits", SPLIT_NAME, MAX_SPLITS),
            statistics=None if statistics is None else _statistics_file(statistics),
            edits=tuple(_file(edit, EDIT_PATH) for edit in fields.list("edits", 0, MOST_FILES)),
            inventory=None if "inventory" not in value else _file(inventory, _STATISTICS_PATH),
            copied=None if "copied" not in value else _copied_files(value["copied"]),
            dictionaries=_dictionaries(fields) if "dictionaries" in value else (),
            next_ordinal=fields.integer("next_ordinal", maximum=MAX_ORDINAL + 1),
            left_out=fields.texts("left_out", ID, MOST_FILES),
            removed=fields.texts("removed", FILE_PATH, MOST_FILES),
            command=fields.text("command", _COMMAND) if "command" in value else "",
            commit=fields.text("commit", ID),
            earlier_commits=fields.texts("earlier_commits", ID, MAX_EARLIER_COMMITS),
            superseded=fields.texts("superseded", _IN_INDEX, MOST_FILES),
        )
        for what, names in (
            ("path of a record file", [file.path for file in manifest.record_files]),
            ("id of a record file", [file.file_id for file in manifest.record_files]),
            ("split", manifest.splits),
            ("feature or dictionary", manifest.value_names),
            ("commit", (manifest.commit, *manifest.earlier_commits)),
        ):
            if len(set(names)) != len(names):
                raise FormatError(f"duplicate {what} in the manifest")
        return manifest


def _to_plain(value: object) -> Any:
    """Convert data classes, also in tuples, to JSON objects."""
    if isinstance(value, tuple):
        return [_to_plain(member) for member in value]
    is_data = isinstance(value, (IndexFile, RecordFile, CopiedFiles, Dictionary))
    return asdict(value) if is_data else value  # type: ignore[call-overload]


def check_record_path(storage: Storage, path: str) -> None:
    """Raise `FormatError` unless `path` is a valid record file path."""
    if not RECORD_PATH.fullmatch(path):
        raise FormatError(
            "not a valid record file name; rename the file",
            file=f"{storage.url}/{path}",
            expected=RECORD_PATH.pattern,
        )


def read_manifest(storage: Storage) -> Manifest:
    """Read the manifest of the dataset in `storage`.

    Raises `NotFoundError` if it is missing: without a manifest there is no dataset.
    """
    data, _ = read_tagged(storage)
    return parse_manifest(storage, data)


def read_named(storage: Storage, file: IndexFile, what: str, max_bytes: int) -> bytes:
    """Read and check a small file named by a manifest. `what` describes it in errors.

    Raises `NotFoundError` if it is missing. Raises `FormatError` if it exceeds `max_bytes` or
    differs from the manifest's size or checksum.
    """
    check_size(storage, file, what, max_bytes)
    data, _ = storage.read_whole(file.path, max_bytes)
    if (actual := crc32c(data)) != int(file.crc32c, 16):
        message, url = f"{what} does not match its checksum", f"{storage.url}/{file.path}"
        raise ChecksumError.of(message, int(file.crc32c, 16), actual, file=url, offset=0)
    return data


def check_size(storage: Storage, file: IndexFile, what: str, max_bytes: int) -> None:
    """Raise `FormatError` unless a file has the manifest's size, up to `max_bytes`."""
    url, size = f"{storage.url}/{file.path}", storage.size(file.path)
    if size != file.size:
        raise FormatError(f"{what} has a wrong length", file=url, expected=file.size, got=size)
    if size > max_bytes:
        expected = f"at most {max_bytes} bytes"
        raise FormatError(f"{what} is too large", file=url, expected=expected, got=size)


def read_tagged(storage: Storage) -> tuple[bytes, str]:
    """Return the manifest's bytes, not validated, and their tag; see `Storage.read_whole`."""
    try:
        return storage.read_whole(MANIFEST, MAX_MANIFEST_BYTES)
    except NotFoundError as error:
        # The bucket or container itself may be missing.
        why = _missing_manifest_hint(storage) if error.message == "no such file" else error.message
        raise NotFoundError(f"no dataset here: {why}", file=storage.url) from error
    except TransientError:
        raise  # no further requests to a storage that does not answer
    except StorageError as error:
        # Not Path.is_file: it raises if the name is too long.
        if "://" not in storage.url and os.path.isfile(storage.url):  # noqa: PTH113
            why = "it is a file, and a dataset is a folder"
            raise NotFoundError(f"no dataset here: {why}", file=storage.url) from error
        if (size := storage.size(MANIFEST)) <= MAX_MANIFEST_BYTES:
            raise
        raise FormatError(
            "the manifest is too large",
            file=f"{storage.url}/{MANIFEST}",
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
            got=size,
        ) from None


def parse_manifest(storage: Storage, data: bytes, path: str = MANIFEST) -> Manifest:
    """Like `Manifest.parse`, with the file name in errors."""
    with located(FormatError, file=f"{storage.url}/{path}"):
        return Manifest.parse(data)


def _missing_manifest_hint(storage: Storage) -> str:
    """Describe the contents of a folder without a manifest, with a remedy."""
    if "://" not in storage.url and not Path(storage.url).exists():
        return "no such folder"
    try:
        if storage.unfinished(RECORDS):
            return (
                "an interrupted write left record files; the same `seqrecord write` with --resume "
                'continues it, or a writer with mode="resume"'
            )
        has_records = any(file.path.endswith(".seqrec") for file in storage.files(RECORDS))
    except StorageError:
        return "it has no manifest"
    if (
        not has_records
        and "://" not in storage.url
        and (Path(storage.url).parent / MANIFEST).exists()
    ):
        return "the folder above it is one"
    if not has_records:
        return (
            "it has neither a manifest nor record files; `seqrecord write --src SRC` packs "
            "originals, `seqrecord index SRC -o DST` makes an index of originals that stay in place"
        )
    return (
        "it has record files but no manifest; `seqrecord write --resume` continues an interrupted "
        "write, `seqrecord reindex` makes a lost manifest again"
    )


def version_path(commit: str) -> str:
    """Return the path of a replaced manifest, by its commit."""
    return f"{VERSIONS}/{commit}.json"


def put_manifest(storage: Storage, manifest: Manifest, *, expected: str | None) -> None:
    """Write the manifest in one conditional step. This is the commit.

    Raises `ConflictError` unless the present manifest has the tag `expected` (`None`: no manifest
    exists). Raises `FormatError` for a manifest that readers would reject. On errors the present
    manifest is kept.
    """
    data = manifest.encode()
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(
            "the manifest is too large; write larger record files",
            file=f"{storage.url}/{MANIFEST}",
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
            got=len(data),
        )
    Manifest.parse(data)
    storage.put(MANIFEST, data, expected=expected)


def _check_end(data: bytes) -> None:
    end = _END.fullmatch(data, max(0, len(data) - _END_BYTES))
    if end is None:
        raise FormatError(
            "the manifest does not end with its checksum",
            offset=max(0, len(data) - _END_BYTES),
            expected=_END.pattern,
            got=data[-_END_BYTES:],
        )
    if (actual := crc32c(data[: end.start()])) != int(end[1], 16):
        message = "the manifest does not match its checksum"
        raise ChecksumError.of(message, int(end[1], 16), actual, offset=0)


def _record_file(value: object) -> RecordFile:
    fields = JsonObject(value, ("path", "size", "file_id"), "a record file in the manifest")
    return RecordFile(
        fields.text("path", RECORD_PATH), fields.integer("size"), fields.text("file_id", ID)
    )


def _file(
    value: object, path: re.Pattern[str], keys: Sequence[str] = ("path", "size", "crc32c")
) -> IndexFile:
    fields = JsonObject(value, keys, "a file in the manifest")
    return IndexFile(fields.text("path", path), fields.integer("size"), fields.text("crc32c", _CRC))


def _statistics_file(value: object) -> StatisticsFile:
    lists = isinstance(value, dict) and value.get("non_finite") is True
    keys = ("path", "size", "crc32c", *["non_finite"] * lists)
    file = _file(value, _STATISTICS_PATH, keys)
    return StatisticsFile(file.path, file.size, file.crc32c, lists)


def _copied_files(value: object) -> CopiedFiles:
    fields = JsonObject(value, ("lists", "content"), "the copied files in the manifest")
    lists = fields.texts("lists", _LIST_ID, MAX_RECORD_FILES)
    return CopiedFiles(lists, fields.text("content", _CONTENT))


def _dictionaries(manifest: JsonObject) -> tuple[Dictionary, ...]:
    dictionaries = []
    for value in manifest.list("dictionaries", 1, MAX_DICTIONARIES):
        fields = JsonObject(value, ("name", "text"), "a dictionary in the manifest")
        dictionaries.append(
            Dictionary(fields.text("name", DICTIONARY_NAME), fields.text("text", DICTIONARY_NAME))
        )
    return tuple(dictionaries)


def _index(value: object, schema: Schema) -> dict[str, IndexFile]:
    names = table_names(schema)
    chunks = [name for name in names if name.startswith("chunks")]
    other_tables = [name for name in names if name not in chunks]
    index = JsonObject(value, (*other_tables, "chunks"), "the manifest's index")
    tables = index.list("chunks", len(chunks), len(chunks))
    entries = {**index.value, **dict(zip(chunks, tables, strict=True))}
    return {name: _file(entries[name], _INDEX_PATH) for name in names}
