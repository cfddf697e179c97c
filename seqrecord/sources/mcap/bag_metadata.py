"""`metadata.yaml` of rosbag2: the files and the numbers of messages that a recording should have.

https://github.com/ros2/rosbag2/blob/rolling/docs/design/rosbag2_record_replay_service.md and
rosbag2_storage/metadata_io.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.lazy import import_extra
from seqrecord.sources.common.files import first_line, read_bytes

METADATA = "metadata.yaml"
_ROOT = "rosbag2_bagfile_information"
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class BagMetadata:
    """Declared contents of a rosbag2 folder: names of files in their order, and messages by topic
    and file. `None` and empty where the file does not declare them."""

    path: Path
    files: tuple[str, ...]
    messages: int | None
    by_topic: Mapping[str, int]
    by_file: Mapping[str, int]

    def check(self, found: Mapping[str, int]) -> None:
        """Raise `SourceError` unless the numbers of messages by topic are the declared ones."""
        for topic in sorted({*self.by_topic, *found}):
            if self.by_topic and self.by_topic.get(topic, 0) != found.get(topic, 0):
                raise self._disagrees(
                    f"{self.by_topic.get(topic, 0)} messages of {topic}",
                    f"{found.get(topic, 0)}",
                )
        total = sum(found.values())
        if self.messages is not None and self.messages != total:
            raise self._disagrees(f"{self.messages} messages", str(total))

    def check_file(self, path: Path, count: int) -> None:
        """Raise `SourceError` unless a file has its declared number of messages."""
        if (declared := self.by_file.get(path.name)) is not None and declared != count:
            raise self._disagrees(f"{declared} messages in {path.name}", str(count))

    def _disagrees(self, expected: str, got: str) -> SourceError:
        return SourceError(
            "a recording with another number of messages than its metadata declares; `ros2 bag "
            "reindex` writes metadata of the files that are there",
            file=str(self.path),
            expected=expected,
            got=got,
        )


def read_metadata(path: Path) -> BagMetadata:
    """The metadata of a rosbag2 folder. Trusts nothing, and unpickles nothing.

    Raises `SourceError` for a file that is not this metadata, and for a compressed recording.
    """
    said = "rosbag2 metadata is read by ruamel.yaml, of the extra `mcap`: pip install rosbags"
    yaml = import_extra("ruamel.yaml", said, str(path))
    try:
        value: Any = yaml.YAML(typ="safe", pure=True).load(read_bytes(path, _MAX_BYTES))
        about = value[_ROOT]
        compression = about.get("compression_mode") or ""
        found = BagMetadata(
            path,
            tuple(Path(_text(name)).name for name in about.get("relative_file_paths") or ()),
            None if about.get("message_count") is None else _count(about["message_count"]),
            {
                _text(each["topic_metadata"]["name"]): _count(each["message_count"])
                for each in about.get("topics_with_message_count") or ()
            },
            {
                Path(_text(each["path"])).name: _count(each["message_count"])
                for each in about.get("files") or ()
                if each.get("message_count") is not None
            },
        )
    except SourceError:
        raise
    except Exception as error:  # YAML of any kind
        raise SourceError(
            "not the metadata of a rosbag2 recording; remove it to read the files without it",
            file=str(path),
            expected=_ROOT,
            got=first_line(error),
        ) from error
    if str(compression).lower() not in ("", "none"):
        raise SourceError(
            "a compressed recording; write it anew without compression: `ros2 bag convert -i IN -o "
            "OUT.yaml`",
            file=str(path),
            expected="no compression",
            got=f"{about.get('compression_format')} of each {str(compression).lower()}"[:100],
        )
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not text: {value!r}"[:100])
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"not a number of messages: {value!r}"[:100])
    return value
