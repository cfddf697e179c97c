"""Files of messages: MCAP, and the SQLite files that rosbag2 wrote before it.

https://mcap.dev/spec and https://github.com/ros2/rosbag2. A file gives the times of all messages
first, which the index of an MCAP file holds, and then the messages of some topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.forks import cached_property
from seqrecord.lazy import required
from seqrecord.sources.files import is_file, on_disk, open_file, size_of

if TYPE_CHECKING:
    import sqlite3

__all__ = ["BagFile", "Topic", "open_bag_file"]

_MAX_CHUNK_BYTES = 1 << 30


@dataclass(frozen=True)
class Topic:
    """A topic as a file describes it: `encoding` is that of messages, as `cdr`.

    `definition` is the type's own one, in the language that `definition_encoding` names; empty
    where the file has none.
    """

    name: str
    type: str
    encoding: str
    definition: bytes = b""
    definition_encoding: str = ""


class BagFile(Protocol):
    """A file of messages. All methods raise `SourceError` that names the file."""

    path: Path

    def topics(self) -> dict[str, Topic]:
        """The topics by name."""
        ...

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        """By topic when its messages were recorded, in ns, in ascending order."""
        ...

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Topic and bytes of each message of these topics; those of a topic in order of time."""
        ...


def open_bag_file(path: Path) -> BagFile:
    """By the name's ending: `.mcap` or `.db3`."""
    return _Sqlite(path) if path.suffix == ".db3" else _Mcap(path)


class _Mcap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def topics(self) -> dict[str, Topic]:
        return self._topics

    @cached_property
    def _topics(self) -> dict[str, Topic]:
        """Found once: a file without an index is read whole for it."""
        with self._open() as reader:
            found: dict[str, Topic] = {}
            for channel, schema in self._channels(reader):
                topic = Topic(
                    channel.topic,
                    "" if schema is None else schema.name,
                    channel.message_encoding,
                    b"" if schema is None else schema.data,
                    "" if schema is None else schema.encoding,
                )
                if found.setdefault(topic.name, topic) != topic:
                    raise SourceError(
                        "a topic of two types",
                        file=str(self.path),
                        got=f"{topic.name}: {found[topic.name].type}, {topic.type}",
                    )
            return found

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        with self._open() as reader:
            runs = self._indexed_times(reader)
            if runs is None:
                scanned: dict[str, list[int]] = {}
                for topic, time, _ in self._scan(reader, None):
                    scanned.setdefault(topic, []).append(time)
                runs = {topic: [np.array(each, np.uint64)] for topic, each in scanned.items()}
            times = {}
            for topic, parts in runs.items():
                joined = np.concatenate([*parts, np.empty(0, np.uint64)])
                if len(joined) and joined.max() >= 1 << 63:
                    raise SourceError("a time beyond the year 2262", file=str(self.path))
                ordered = joined.astype(np.int64)
                if reader.summary is not None:
                    ordered.sort()
                elif np.any(np.diff(ordered) < 0):
                    raise SourceError(
                        "timestamps that go back, in a file without an index",
                        file=str(self.path),
                        expected="a file that `mcap recover` or `mcap sort` has written",
                        got=topic,
                    )
                times[topic] = ordered
            return times

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        with self._open() as reader:
            for topic, _, data in self._scan(reader, list(topics)):
                yield topic, data

    @contextmanager
    def _open(self) -> Iterator[_McapReader]:
        with _reading(self.path), open_file(self.path) as stream:
            yield _McapReader(stream, self.path)

    def _channels(self, reader: _McapReader) -> list[tuple[Any, Any]]:
        if reader.summary is not None:
            schemas = reader.summary.schemas
            return [
                (channel, schemas[channel.schema_id] if channel.schema_id else None)
                for channel in reader.summary.channels.values()
            ]
        found = {}
        for schema, channel, _ in reader.in_file_order(None):
            found[channel.id] = (channel, schema)
        return [*found.values()]

    def _indexed_times(self, reader: _McapReader) -> dict[str, list[npt.NDArray[np.uint64]]] | None:
        """The times that the message indexes hold; `None` where not all chunks have one."""
        summary = reader.summary
        if summary is None or any(
            not chunk.message_index_offsets for chunk in summary.chunk_indexes
        ):
            return None
        runs: dict[str, list[npt.NDArray[np.uint64]]] = {
            channel.topic: [] for channel in summary.channels.values()
        }
        for chunk in summary.chunk_indexes:
            for channel_id, offset in chunk.message_index_offsets.items():
                entries = reader.message_index(offset, channel_id)
                runs[summary.channels[channel_id].topic].append(entries)
        return runs

    def _scan(
        self, reader: _McapReader, topics: list[str] | None
    ) -> Iterator[tuple[str, int, bytes]]:
        """Topic, time and bytes of messages, those of a topic in the order of `times`."""
        found = reader.in_file_order(topics) if reader.summary is None else reader.in_order(topics)
        for _, channel, message in found:
            yield channel.topic, message.log_time, message.data


class _McapReader:
    """The mcap package's readers of one open file, with its checksums verified.

    `summary` is `None` for a file without an index of its chunks, which is read front to back.
    """

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        said = "MCAP files are read by mcap, the extra `mcap`: pip install mcap"
        reader = required("mcap.reader", said, str(path))
        self._library, self._stream = reader, stream
        self._size = size_of(path)
        self._seeking = reader.SeekingReader(
            stream, validate_crcs=True, record_size_limit=self._size
        )
        self.summary = self._seeking.get_summary()
        if self.summary is not None:
            if not self.summary.chunk_indexes:
                self.summary = None
                return
            largest = max(chunk.uncompressed_size for chunk in self.summary.chunk_indexes)
            if largest > _MAX_CHUNK_BYTES:
                raise SourceError(
                    "a chunk that is too large",
                    file=str(path),
                    expected=f"at most {_MAX_CHUNK_BYTES} bytes",
                    got=largest,
                )

    def in_order(self, topics: list[str] | None) -> Iterator[tuple[Any, Any, Any]]:
        """Schema, channel and message in order of time, from the chunks that have them."""
        found: Iterator[tuple[Any, Any, Any]] = self._seeking.iter_messages(topics)
        return found

    def in_file_order(self, topics: list[str] | None) -> Iterator[tuple[Any, Any, Any]]:
        """The same in the order of the file, which needs no index and is read whole."""
        self._stream.seek(0)
        whole = self._library.NonSeekingReader(
            self._stream, validate_crcs=True, record_size_limit=self._size
        )
        found: Iterator[tuple[Any, Any, Any]] = whole.iter_messages(topics, log_time_order=False)
        return found

    def message_index(self, offset: int, channel_id: int) -> npt.NDArray[np.uint64]:
        """The times in the MessageIndex record at `offset`."""
        self._stream.seek(offset)
        head = self._stream.read(15)  # opcode, record's length, channel, length of the entries
        size = int.from_bytes(head[11:15], "little")
        if head[:1] != b"\x07" or int.from_bytes(head[9:11], "little") != channel_id or size % 16:
            raise ValueError(f"no message index of channel {channel_id} at byte {offset}")
        if size > self._size:
            raise ValueError(f"a message index of {size} bytes at byte {offset}")
        entries = np.frombuffer(self._stream.read(size), "<u8").reshape(-1, 2)
        if len(entries) != size // 16:
            raise ValueError(f"a truncated message index at byte {offset}")
        return entries[:, 0].astype(np.uint64)


class _Sqlite:
    """rosbag2's storage `sqlite3`: a table of topics, and one of messages.

    A file on a URL is copied to the folder for temporary files while it is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def topics(self) -> dict[str, Topic]:
        return self._topics

    @cached_property
    def _topics(self) -> dict[str, Topic]:
        with self._open() as database:
            rows = database.execute("SELECT name, type, serialization_format FROM topics")
            return {str(name): Topic(str(name), str(t), str(s)) for name, t, s in rows}

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        with self._open() as database:
            times = {}
            for number, name in database.execute("SELECT id, name FROM topics").fetchall():
                rows = database.execute(
                    "SELECT timestamp FROM messages WHERE topic_id = ? ORDER BY timestamp",
                    (number,),
                )
                times[str(name)] = np.fromiter((row[0] for row in rows), np.int64)
            return times

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        with self._open() as database:
            names = dict(database.execute("SELECT id, name FROM topics").fetchall())
            chosen = [number for number, name in names.items() if name in topics]
            marks = ", ".join("?" * len(chosen))
            rows = database.execute(
                f"SELECT topic_id, data FROM messages WHERE topic_id IN ({marks}) "  # noqa: S608
                "ORDER BY timestamp, id",
                chosen,
            )
            for number, data in rows:
                if not isinstance(data, bytes):
                    raise ValueError("a message that is no bytes")
                yield names[number], data

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        import sqlite3  # a Python may be built without it

        with _reading(self.path):
            if not is_file(self.path):
                raise FileNotFoundError(self.path)
            with on_disk(self.path) as path:
                url = f"file:{quote(str(path))}?mode=ro&immutable=1"
                with closing(sqlite3.connect(url, uri=True)) as database:
                    yield database


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What a reader raises for a damaged file, which is of any kind, becomes a `SourceError`."""
    try:
        yield
    except SeqRecordError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise SourceError(
            "a file of messages that is damaged, or was not finished",
            file=str(path),
            expected="a whole file; `mcap recover` saves what is in one that was cut"
            if path.suffix == ".mcap"
            else None,
            got=text[:200],
        ) from error
