"""Files of messages: MCAP, rosbag2's older SQLite files, and bags of ROS 1.

https://mcap.dev/spec and https://github.com/ros2/rosbag2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.formats.sources.mcap.bag_metadata import METADATA, check_counts
from seqrecord.in_place.file_types import file_type
from seqrecord.in_place.files import (
    first_line,
    is_file,
    on_disk,
    open_file,
    size_of,
)
from seqrecord.store.lazy import import_extra
from seqrecord.store.text import repr_of

if TYPE_CHECKING:
    import sqlite3

BAG_ENDINGS = (".mcap", ".db3", ".bag")
_ROSBAG = b"#ROSBAG V2.0\n"
_MAX_CHUNK_BYTES = 1 << 30
_MAX_RECORD_BYTES = _MAX_CHUNK_BYTES + (1 << 20)  # of MCAP: a chunk and its header
# A view can compute any number of rows from a small file, so work is limited by its size. See
# tests/formats/test_mcap.py::test_a_database_that_computes_its_rows.
_STEP, _FREE_STEPS, _STEPS_PER_BYTE = 100_000, 10_000_000, 100  # instructions of SQLite
_SQLITE_LIMIT_LENGTH = 0  # https://www.sqlite.org/c3ref/c_limit_attached.html


class Definition(NamedTuple):
    """A file's own definition of a message type, in a language such as `ros2msg`."""

    data: bytes
    language: str


@dataclass(frozen=True)
class Topic:
    """A topic as declared by a file; `encoding` is the messages' encoding, such as `cdr`.

    `definitions` are the type's distinct definitions: of several publishers, if their texts differ.
    """

    name: str
    type: str
    encoding: str
    definitions: tuple[Definition, ...] = ()


class _Mcap:
    """An MCAP file, read by the mcap package with checksum verification.

    `summary` is `None` without a chunk index; the file is then read sequentially.
    """

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        hint = "MCAP files need mcap, the extra `mcap`: pip install mcap"
        self._library, self._stream = import_extra("mcap.reader", hint, str(path)), stream
        self._size = size_of(path)
        self._limits: dict[str, Any] = {
            "validate_crcs": True,
            "record_size_limit": _MAX_RECORD_BYTES,
        }
        self._seeking = self._library.SeekingReader(stream, **self._limits)
        summary = self._seeking.get_summary()
        self.summary = summary if summary is not None and summary.chunk_indexes else None
        self.statistics = None if summary is None else summary.statistics
        self.channels = {} if summary is None else summary.channels
        for chunk in self.summary.chunk_indexes if self.summary else ():
            _check_chunk(chunk.uncompressed_size)

    def extras(self) -> dict[str, int]:
        """Return the counts of the file's statistics, see `Recording.extras`."""
        if (statistics := self.statistics) is None:
            return {}
        counts = {
            "attachments": statistics.attachment_count,
            "metadata records": statistics.metadata_count,
        }
        return {name: count for name, count in counts.items() if count}

    def topics(self) -> dict[str, Topic]:
        """Return the topics; reads the whole file without a summary."""
        if self.summary is None:
            channels = {channel.id: (schema, channel) for schema, channel, _ in self._messages()}
        else:
            schemas = {0: None, **self.summary.schemas}
            channels = {n: (schemas[c.schema_id], c) for n, c in self.summary.channels.items()}
        return _merge_topics(_declared(schema, channel) for schema, channel in channels.values())

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the messages' log times in ns by topic, ascending."""
        times = {}
        for topic, runs in self._times().items():
            log_times = np.concatenate([*runs, np.empty(0, np.uint64)])
            if len(log_times) and log_times.max() >= 1 << 63:
                raise SourceError("log time after the year 2262")
            sorted_times = log_times.astype(np.int64)
            if self.summary is not None:
                sorted_times.sort()
            elif np.any(np.diff(sorted_times) < 0):
                raise SourceError(
                    "timestamps are not ascending in a file without an index",
                    expected="a file written by `mcap recover` or `mcap sort`",
                    got=topic,
                )
            times[topic] = sorted_times
        self._check_statistics({topic: len(topic_times) for topic, topic_times in times.items()})
        return times

    def _check_statistics(self, counts: Mapping[str, int]) -> None:
        """Raise `SourceError` if the numbers of messages differ from the file's statistics."""
        if (statistics := self.statistics) is None:
            return
        declared: dict[str, int] = {}
        for number, count in statistics.channel_message_counts.items():
            channel = self.channels.get(number)
            topic = f"channel {number}" if channel is None else channel.topic
            declared[topic] = declared.get(topic, 0) + count
        if sum(declared.values()) != statistics.message_count:
            declared = {}
        remedy = "`mcap recover` writes a file of the existing messages"
        check_counts("file's statistics", remedy, declared, counts, statistics.message_count)

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield topic and bytes of the messages on these topics, ordered by time per topic."""
        for _, channel, message in self._messages(topics):
            yield channel.topic, message.data

    def _messages(self, topics: Sequence[str] | None = None) -> Iterator[tuple[Any, Any, Any]]:
        """Yield schema, channel and message.

        In order of time with a summary, from chunks with these topics; else in file order.
        """
        if self.summary is not None:
            yield from self._seeking.iter_messages(topics)
            return
        self._stream.seek(0)
        reader = self._library.NonSeekingReader(self._stream, **self._limits)
        yield from reader.iter_messages(topics, log_time_order=False)

    def _times(self) -> dict[str, list[npt.NDArray[np.uint64]]]:
        """Return log times from the message indexes, or from messages if a chunk has no index."""
        chunks = [] if self.summary is None else self.summary.chunk_indexes
        if self.summary is not None and all(chunk.message_index_offsets for chunk in chunks):
            channels = self.summary.channels
            runs: dict[str, list[npt.NDArray[np.uint64]]]
            runs = {channel.topic: [] for channel in channels.values()}
            for chunk in chunks:
                for channel_id, offset in chunk.message_index_offsets.items():
                    entries = self._message_index(offset, channel_id)
                    runs[channels[channel_id].topic].append(entries)
            return runs
        scanned: dict[str, list[int]] = {}
        for _, channel, message in self._messages():
            scanned.setdefault(channel.topic, []).append(message.log_time)
        return {topic: [np.array(log_times, np.uint64)] for topic, log_times in scanned.items()}

    def _message_index(self, offset: int, channel_id: int) -> npt.NDArray[np.uint64]:
        """Return the times in the MessageIndex record at `offset`."""
        self._stream.seek(offset)
        head = self._stream.read(15)  # opcode, record length, channel, length of entries
        size = int.from_bytes(head[11:15], "little")
        if head[:1] != b"\x07" or int.from_bytes(head[9:11], "little") != channel_id or size % 16:
            raise ValueError(f"missing message index of channel {channel_id} at byte {offset}")
        if size > self._size:
            raise ValueError(f"message index of {size} bytes at byte {offset} exceeds the file")
        entries = np.frombuffer(self._stream.read(size), "<u8").reshape(-1, 2)
        if len(entries) != size // 16:
            raise ValueError(f"truncated message index at byte {offset}")
        return entries[:, 0].astype(np.uint64)


def _declared(schema: Any, channel: Any) -> Topic:
    """Return the topic of an MCAP channel; `schema` is `None` without one."""
    name, encoding = channel.topic, channel.message_encoding
    if schema is None:
        return Topic(name, "", encoding)
    type_ = schema.name
    if schema.encoding == "ros1msg" and type_.count("/") == 1:
        type_ = type_.replace("/", "/msg/")  # as in ROS 2
    return Topic(name, type_, encoding, _definitions(schema.data, schema.encoding))


def _definitions(data: bytes, language: str) -> tuple[Definition, ...]:
    return (Definition(data, language),) if data else ()


def _merge_topics(declared_topics: Iterable[Topic]) -> dict[str, Topic]:
    """Return topics by name; a file may declare a topic for each publisher.

    Raises `SourceError` for two types. Definitions may differ in their text: readers compare the
    fields, `check_equal_definitions`.
    """
    topics: dict[str, Topic] = {}
    definitions: dict[str, dict[Definition, None]] = {}
    for topic in declared_topics:
        first = topics.setdefault(topic.name, topic)
        if (first.type, first.encoding) != (topic.type, topic.encoding):
            got = f"{topic.name}: {first.type} ({first.encoding}), {topic.type} ({topic.encoding})"
            raise SourceError("the topic has two types", expected="1 type", got=got)
        definitions.setdefault(topic.name, {}).update(dict.fromkeys(topic.definitions))
    return {
        name: replace(topic, definitions=tuple(definitions[name])) for name, topic in topics.items()
    }


class _Sqlite:
    """A file of rosbag2's storage `sqlite3`, with a table of topics and a table of messages.

    A view or a generated column computes any number of rows and bytes from a small file, and
    damaged pages may point at each other: both names must be plain tables, and a statement ends
    after steps that are proportional to the file.
    """

    def __init__(self, database: sqlite3.Connection, size: int) -> None:
        self._database, self._steps = database, 0
        self._most_steps = (_FREE_STEPS + _STEPS_PER_BYTE * size) // _STEP
        database.execute("PRAGMA trusted_schema = OFF")
        if hasattr(database, "setlimit"):  # since Python 3.11
            database.setlimit(_SQLITE_LIMIT_LENGTH, max(1 << 20, size))
        database.set_progress_handler(self._is_too_long, _STEP)
        for table in ("topics", "messages"):
            self._check_table(table)

    def _check_table(self, name: str) -> None:
        """Raise `SourceError` for a view, a virtual table and a generated column."""
        kinds = self._rows("SELECT type, sql FROM sqlite_master WHERE name = ?", (name,)).fetchall()
        columns = self._rows(f"PRAGMA table_xinfo({name})").fetchall()
        is_plain = [kind for kind, sql in kinds] == ["table"] and not any(
            re.match(r"\s*CREATE\s+VIRTUAL", str(sql), re.IGNORECASE) for _, sql in kinds
        )
        if not is_plain or any(column[-1] for column in columns):
            raise SourceError(
                "not a recording of rosbag2",
                expected=f"a table {name} with stored rows",
                got=f"{'generated columns' if is_plain else repr_of(kinds, 100)}",
            )

    def _is_too_long(self) -> bool:
        self._steps += 1
        return self._steps > self._most_steps

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        self._steps = 0
        return self._database.execute(statement, values)

    def extras(self) -> dict[str, int]:
        return {}

    def topics(self) -> dict[str, Topic]:
        rows = self._rows("SELECT name, type, serialization_format FROM topics")
        return _merge_topics(map(_topic_of_row, rows))

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        runs: dict[str, list[npt.NDArray[np.int64]]] = {}
        for number, name in self._names():  # two rows of topics may have one name
            rows = self._rows(
                "SELECT timestamp FROM messages WHERE topic_id = ? ORDER BY timestamp", (number,)
            )
            runs.setdefault(str(name), []).append(np.fromiter((row[0] for row in rows), np.int64))
        return {name: np.sort(np.concatenate(times)) for name, times in runs.items()}

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        names = {number: name for number, name in self._names() if name in topics}
        marks = ", ".join("?" * len(names))
        rows = self._rows(
            f"SELECT topic_id, data FROM messages WHERE topic_id IN ({marks}) "  # noqa: S608
            "ORDER BY timestamp, id",
            [*names],
        )
        for number, data in rows:
            if not isinstance(data, bytes):
                raise ValueError("message data is not bytes")
            yield names[number], data

    def _names(self) -> list[tuple[int, str]]:
        return self._rows("SELECT id, name FROM topics").fetchall()


def _topic_of_row(row: Sequence[Any]) -> Topic:
    """Return the topic of a name, type and encoding. Raises `SourceError` unless all are text."""
    if not all(isinstance(word, str) for word in row):
        raise SourceError("a topic is not described by text", got=repr_of(row, 100))
    return Topic(*row)


class _Rosbag1:
    """A bag of ROS 1, read by rosbags. https://wiki.ros.org/Bags/Format/2.0"""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        counts = {"": sum(map(len, reader.indexes.values()))}
        remedy = "`rosbag reindex` writes it"
        check_counts("bag's index", remedy, {}, counts, reader.message_count)
        for place, chunk in reader.chunks.items():
            reader.chunks[place] = _limit_chunk(reader.bio, place, chunk)

    def extras(self) -> dict[str, int]:
        return {}

    def topics(self) -> dict[str, Topic]:
        return _merge_topics(
            Topic(
                *(connection.topic, connection.msgtype, "ros1"),
                _definitions(connection.msgdef.data.encode(), "ros1msg"),
            )
            for connection in self._reader.connections
        )

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        times: dict[str, list[int]] = {}
        for connection in self._reader.connections:
            entries = self._reader.indexes[connection.id]
            times.setdefault(connection.topic, []).extend(entry.time for entry in entries)
        return {
            topic: np.sort(np.array(topic_times, np.int64)) for topic, topic_times in times.items()
        }

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        connections = [
            connection for connection in self._reader.connections if connection.topic in topics
        ]
        for connection, _, data in self._reader.messages(connections) if connections else ():
            yield connection.topic, data


def _check_chunk(size: int) -> None:
    if size > _MAX_CHUNK_BYTES:
        limit = f"at most {_MAX_CHUNK_BYTES} bytes"
        raise SourceError("chunk too large", expected=limit, got=size)


def _limit_chunk(file: BinaryIO, place: int, chunk: Any) -> Any:
    """Return the ROS 1 chunk at `place` with a decompressor that stops at its declared size."""
    import bz2  # optional in Python builds

    lz4 = import_extra("lz4.frame", "ROS 1 bags need lz4, the extra `mcap`: pip install lz4")
    file.seek(place)
    head = file.read(int.from_bytes(file.read(4), "little"))
    size = int.from_bytes(head.partition(b"size=")[2][:4], "little")
    _check_chunk(max(chunk.datasize, size))
    kinds = {b"=bz2": bz2.BZ2Decompressor, b"=lz4": lz4.LZ4FrameDecompressor}
    kind = next((kinds[mark] for mark in kinds if mark in head), None)
    if kind is None:
        return chunk

    def unpack(data: bytes) -> bytes:
        stream = kind()
        content: bytes = stream.decompress(data, size + 1)
        if len(content) != size or not stream.eof:
            raise SourceError("a chunk has another size than its header declares", expected=size)
        return content

    return chunk._replace(decompressor=unpack)


def _check_database(path: Path) -> None:
    """Raise `SourceError` for a truncated database, and for one with messages in a log file.

    Opening it with its log would write to the original. The header has the page size at byte 16 and
    the number of pages at byte 28: https://www.sqlite.org/fileformat.html.
    """
    with open_file(path) as file:
        head = file.read(32)
    page = int.from_bytes(head[16:18], "big")
    declared = int.from_bytes(head[28:32], "big") * (1 << 16 if page == 1 else page)
    if len(head) == 32 and size_of(path) < declared:
        raise SourceError(
            "truncated database; download it again",
            expected=f"{declared} bytes, as its header declares",
            got=f"{size_of(path)} bytes",
        )
    for ending, remedy in (
        ("-wal", f"sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"),
        ("-journal", f"sqlite3 {path.name} 'PRAGMA quick_check'"),
    ):
        log = path.with_name(path.name + ending)
        if is_file(log) and (size := size_of(log)):
            raise SourceError(
                f"some messages are still in {log.name}; on a copy, or if "
                f"nothing writes to it, run `{remedy}`",
                expected=f"no {log.name}, or an empty one",
                got=f"{size} bytes",
            )


@contextmanager
def open_bag(path: Path) -> Iterator[_Mcap | _Sqlite | _Rosbag1]:
    """Open a file of messages. Raises `SourceError` with the file, also for damage.

    A remote SQLite file or ROS 1 bag is copied to the folder for temporary files while it is read.
    """
    is_mcap, is_ros1 = path.suffix == ".mcap", path.suffix == ".bag"
    metadata = path.with_name(METADATA)
    exists = os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for a name that is too long
    if not is_file(path) and not exists and is_file(metadata):
        raise SourceError(
            f"missing file, listed in {METADATA}; `ros2 bag reindex` rewrites the metadata for the "
            "existing files",
            file=str(metadata),
            expected=path.name,
            got="no such file",
        )
    if path.suffix not in BAG_ENDINGS:
        raise SourceError(
            f"unsupported file, listed in {METADATA}: {file_type(path) or 'unknown type'}",
            file=str(path),
            expected=" or ".join(BAG_ENDINGS),
            got=path.name,
        )
    try:
        if is_mcap:
            with open_file(path) as stream:
                yield _Mcap(stream, path)
            return
        if not is_file(path):
            raise FileNotFoundError(path)
        if is_ros1:
            hint = "ROS 1 bags need rosbags, the extra `mcap`: pip install rosbags"
            library = import_extra("rosbags.rosbag1", hint, str(path))
            with open_file(path) as file:  # the library reads its first line, however long
                if (magic := file.read(len(_ROSBAG))) != _ROSBAG:
                    got = repr_of(magic)
                    raise SourceError("not a bag of ROS 1", expected=repr(_ROSBAG), got=got)
            with on_disk(path) as local, library.Reader(local) as reader:
                yield _Rosbag1(reader)
            return
        import sqlite3  # optional in Python builds

        _check_database(path)
        with on_disk(path) as local:
            url = f"file:{quote(str(local))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(url, uri=True)) as database:
                yield _Sqlite(database, size_of(path))
    except SeqRecordError as error:
        error.located(file=str(path))
        raise
    except Exception as error:
        raise SourceError(
            "damaged or unfinished file of messages",
            file=str(path),
            expected="a complete file; `mcap recover` rescues messages of a truncated one"
            if is_mcap
            else "a complete file; `rosbag reindex` rescues messages of a truncated one"
            if is_ros1
            else None,
            got=first_line(error),
        ) from error
