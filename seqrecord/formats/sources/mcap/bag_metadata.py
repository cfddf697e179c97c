"""`metadata.yaml` of rosbag2: a recording's declared files and numbers of messages.

https://github.com/ros2/rosbag2/blob/rolling/docs/design/rosbag2_record_replay_service.md and
rosbag2_storage/metadata_io.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.yaml_values import read_yaml
from seqrecord.in_place.files import first_line
from seqrecord.store.text import repr_of

METADATA = "metadata.yaml"
_ROOT = "rosbag2_bagfile_information"
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class BagMetadata:
    """Declared content of a rosbag2 folder: file names in order, and messages by topic and file.

    `None` or empty if the file does not declare them.
    """

    path: Path
    files: tuple[str, ...]
    messages: int | None
    by_topic: Mapping[str, int]
    by_file: Mapping[str, int]

    def check(self, counts: Mapping[str, int], by_file: Mapping[str, int]) -> None:
        """Raise `SourceError` if numbers of messages by topic or file differ from declared ones."""
        remedy = "`ros2 bag reindex` rewrites the metadata for the existing files"
        with located(SourceError, file=str(self.path)):
            files = {name: count for name, count in by_file.items() if name in self.by_file}
            declared_files = {name: count for name, count in self.by_file.items() if name in files}
            check_counts("recording's metadata", remedy, declared_files, files)
            check_counts("recording's metadata", remedy, self.by_topic, counts, self.messages)


def check_counts(
    origin: str,
    remedy: str,
    declared: Mapping[str, int],
    counts: Mapping[str, int],
    total: int | None = None,
) -> None:
    """Raise `SourceError` if numbers of messages by topic, or their sum, differ from declared ones.

    Without any declared topic only the sum is compared, if it is declared.
    """
    pairs = [
        (f" of {n}", declared.get(n, 0), counts.get(n, 0)) for n in sorted({*declared, *counts})
    ]
    sums = [] if total is None else [(" of all topics", total, sum(counts.values()))]
    for subject, expected, got in (*(pairs if declared else ()), *sums):
        if expected != got:
            raise SourceError(
                f"the number of messages differs from the {origin}; {remedy}",
                expected=f"{expected} messages{subject}",
                got=got,
            )


def read_metadata(path: Path) -> BagMetadata:
    """Read the metadata of a rosbag2 folder.

    Raises `SourceError` for an invalid file and for a compressed recording.
    """
    remedy = "remove it to read the files without it"
    try:
        value = read_yaml(path, MAX_BYTES)
    except SourceError as error:
        problem = f"invalid metadata of a rosbag2 recording; {remedy}: {error.message}"
        raise SourceError(problem, **error.context()) from error
    try:
        information = value[_ROOT]
        compression = information.get("compression_mode") or ""
        metadata = BagMetadata(
            path,
            tuple(Path(_text(name)).name for name in information.get("relative_file_paths") or ()),
            None
            if information.get("message_count") is None
            else _count(information["message_count"]),
            {
                _text(topic_entry["topic_metadata"]["name"]): _count(topic_entry["message_count"])
                for topic_entry in information.get("topics_with_message_count") or ()
            },
            {
                Path(_text(file_entry["path"])).name: _count(file_entry["message_count"])
                for file_entry in information.get("files") or ()
                if file_entry.get("message_count") is not None
            },
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # any other YAML
        raise SourceError(
            f"invalid metadata of a rosbag2 recording; {remedy}",
            file=str(path),
            expected=_ROOT,
            got=first_line(error),
        ) from error
    if str(compression).lower() not in ("", "none"):
        raise SourceError(
            "compressed recording; rewrite it without compression, `ros2 bag convert -i IN -o "
            "OUT.yaml`",
            file=str(path),
            expected="no compression",
            got=f"{information.get('compression_format')} of each {str(compression).lower()}"[:100],
        )
    return metadata


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {repr_of(value, 80)}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number of messages, got {repr_of(value, 80)}")
    return value
