"""The manifest: the small JSON file that makes record files and an index a dataset."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, FormatError, NotFoundError, SchemaError, VersionError
from seqrecord.ranges import ByteRange
from seqrecord.schema import Schema
from seqrecord.storage import Storage
from seqrecord.text import parse_json

__all__ = [
    "INDEX_TABLES",
    "MANIFEST",
    "MAX_MANIFEST_BYTES",
    "MAX_RECORD_FILES",
    "IndexFile",
    "Manifest",
    "RecordFile",
    "commit_manifest",
    "read_manifest",
]

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 28
MAX_RECORD_FILES = 1_000_000
INDEX_TABLES = ("episodes", "chunks", "gaps")

_RECORD_PATH = re.compile(r"records/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.seqrec")
_INDEX_PATH = re.compile(r"index/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.arrow")
_FILE_ID = re.compile(r"[0-9a-f]{32}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_CRC = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class RecordFile:
    """A record file of the dataset: path, length in bytes, the id in its header."""

    path: str
    size: int
    file_id: str


@dataclass(frozen=True)
class IndexFile:
    """A file of the index: path, length in bytes, CRC32C of all of it, in hexadecimal."""

    path: str
    size: int
    crc32c: str


@dataclass(frozen=True)
class Manifest:
    """What a dataset consists of. `fingerprint` tells equal content, however it is cut in files."""

    schema: Schema
    record_files: tuple[RecordFile, ...]
    index: Mapping[str, IndexFile]
    num_episodes: int
    num_frames: int
    fingerprint: str
    created_by: str

    def encode(self) -> bytes:
        """The manifest as JSON text that ends with its own checksum."""
        value = {
            "format": "seqrecord",
            "version": MANIFEST_VERSION,
            "created_by": self.created_by,
            "num_episodes": self.num_episodes,
            "num_frames": self.num_frames,
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json(),
            "index": {table: asdict(self.index[table]) for table in INDEX_TABLES},
            "record_files": [asdict(file) for file in self.record_files],
        }
        value["crc32c"] = _checksum(value)
        return json.dumps(value, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Inverse of `encode`; trusts nothing."""
        value = parse_json(data)
        if not isinstance(value, dict) or value.get("format") != "seqrecord":
            raise FormatError("not a manifest of a seqrecord dataset")
        if value.get("version") != MANIFEST_VERSION:
            raise VersionError(
                "an unknown manifest version; a newer seqrecord may read it",
                expected=MANIFEST_VERSION,
                got=repr(value.get("version"))[:50],
            )
        stored = value.pop("crc32c", None)
        if stored != (actual := _checksum(value)):
            raise ChecksumError(
                "the manifest does not match its checksum",
                expected=f"CRC32C {str(stored)[:20]}",
                got=actual,
            )
        try:
            schema = Schema.from_json(value.get("schema"))
        except SchemaError as error:
            raise FormatError(f"the manifest's schema is not allowed: {error}") from error
        files = value.get("record_files")
        if not isinstance(files, list) or len(files) > MAX_RECORD_FILES:
            raise FormatError(
                "record_files is not a list", expected=f"at most {MAX_RECORD_FILES} entries"
            )
        tables = value.get("index")
        if not isinstance(tables, dict) or sorted(tables) != sorted(INDEX_TABLES):
            raise FormatError("index does not name its tables", expected=", ".join(INDEX_TABLES))
        record_files = tuple(
            RecordFile(
                _text(file, "path", _RECORD_PATH),
                _count(file, "size"),
                _text(file, "file_id", _FILE_ID),
            )
            for file in files
        )
        if len({file.path for file in record_files}) != len(record_files):
            raise FormatError("a record file is listed twice")
        return cls(
            schema=schema,
            record_files=record_files,
            index={
                table: IndexFile(
                    _text(tables[table], "path", _INDEX_PATH),
                    _count(tables[table], "size"),
                    _text(tables[table], "crc32c", _CRC),
                )
                for table in INDEX_TABLES
            },
            num_episodes=_count(value, "num_episodes"),
            num_frames=_count(value, "num_frames"),
            fingerprint=_text(value, "fingerprint", _FINGERPRINT),
            created_by=str(value.get("created_by"))[:200],
        )


def read_manifest(storage: Storage) -> Manifest:
    """The manifest of the dataset in `storage`.

    Raises `NotFoundError` where there is none: then there is no dataset, whatever else is there.
    """
    file = f"{storage.url}/{MANIFEST}"
    try:
        size = storage.size(MANIFEST)
    except NotFoundError as error:
        raise NotFoundError(
            "no dataset here: it has no manifest (an interrupted `seqrecord write` goes on with "
            "--resume; `seqrecord reindex` makes one from record files)",
            file=file,
        ) from error
    if size > MAX_MANIFEST_BYTES:
        raise FormatError(
            "the manifest is too large",
            file=file,
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
            got=size,
        )
    data = bytearray(size)
    storage.read_ranges(MANIFEST, [ByteRange(0, size)], [memoryview(data)])
    try:
        return Manifest.parse(bytes(data))
    except FormatError as error:
        raise error.located(file=file) from error.__cause__


def commit_manifest(storage: Storage, manifest: Manifest) -> None:
    """Put the manifest in place in one step: from then on the dataset is what it says."""
    upload = storage.create(MANIFEST, replace=True)
    try:
        upload.write(manifest.encode())
        upload.commit()
    except BaseException:
        upload.abort()
        raise


def _checksum(value: Mapping[str, Any]) -> str:
    """CRC32C of the canonical JSON text of all other keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"


def _text(value: object, key: str, pattern: re.Pattern[str]) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise FormatError(
            f"the manifest has a bad {key}", expected=pattern.pattern, got=repr(text)[:200]
        )
    return text


def _count(value: object, key: str) -> int:
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
        raise FormatError(
            f"the manifest has a bad {key}", expected="0 to 2**63 - 1", got=repr(number)[:50]
        )
    return number
