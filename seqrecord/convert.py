"""convert: packs a source into a dataset, on many processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from os import PathLike
from typing import Any

from seqrecord.destination import Destination, WriteMode, claim
from seqrecord.errors import DestinationError, FormatError, FrameError, SeqRecordError, SourceError
from seqrecord.manifest import Manifest
from seqrecord.record_file import RecordFileWriter
from seqrecord.schema import Schema
from seqrecord.sources import EpisodeInfo, Source
from seqrecord.storage import Storage, open_storage
from seqrecord.text import check_key, encode_metadata
from seqrecord.version import CREATED_BY
from seqrecord.writer import (
    DEFAULT_RECORD_BYTES,
    Codecs,
    default_chunk_frames,
    stored_schema,
)

__all__ = ["BadEpisode", "ConvertReport", "Progress", "convert"]

_REPORT_SECONDS = 0.1


@dataclass(frozen=True)
class Progress:
    """How far a conversion is. `total_frames` is what the source lists, bad episodes included."""

    frames: int
    total_frames: int
    raw_bytes: int  # decoded bytes of the frames so far


@dataclass(frozen=True)
class BadEpisode:
    """An episode that was left out, and why."""

    key: str
    error: str


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion did. Episodes that were there before are `skipped`."""

    manifest: Manifest
    written: tuple[str, ...]
    skipped: tuple[str, ...]
    bad: tuple[BadEpisode, ...]


def convert(
    source: Source,
    destination: str | PathLike[str],
    *,
    codecs: Codecs | None = None,
    mode: WriteMode = "create",
    workers: int | None = None,
    executor: Executor | None = None,
    skip_bad_episodes: bool = False,
    chunk_frames: int | None = None,
    record_bytes: int = DEFAULT_RECORD_BYTES,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Pack all episodes of a source.

    Episodes are written in groups of about a record file, each group by one worker into record
    files of its own; a worker holds one chunk of frames. The order of episodes is the source's,
    whatever the number of workers. The dataset exists when `convert` returns; stopped earlier, by
    an error or a kill, it goes on with `mode="resume"` after the episodes that had ended.

    Args:
        source: where the episodes come from.
        destination, codecs, mode, chunk_frames, record_bytes, storage_options: as for
            `SeqRecordWriter`. `append` and `resume` skip episodes that are there already.
        workers: processes; by default one for each core, 1 stays in this process. The processes
            are spawned, so a script calls this below `if __name__ == "__main__":`.
        executor: runs the groups instead, on threads or on other machines that share the
            destination; `progress` then moves by whole groups.
        skip_bad_episodes: leave out episodes that raise `SourceError`, and report them.
        progress: called from this thread, several times a second.

    Raises `SourceError` for a broken original and `DestinationError` for a destination that `mode`
    does not fit.
    """
    schema = source.schema()
    episodes = source.episodes()
    _check_episodes(episodes)
    storage = open_storage(destination, storage_options)
    target = claim(storage, mode)
    try:
        schema = stored_schema(schema, codecs, target.schema)
        new = [info for info in episodes if info.key not in target.committed]
        todo = [
            (target.first_ordinal + position, info)
            for position, info in enumerate(new)
            if info.key not in target.finished
        ]
        groups = [
            _Group(
                source=source,
                storage=storage,
                schema=schema,
                episodes=tuple(episodes),
                chunk_frames=chunk_frames or default_chunk_frames(schema),
                record_bytes=record_bytes,
                skip_bad_episodes=skip_bad_episodes,
            )
            for episodes in _grouped(todo, schema.frame_nbytes, record_bytes)
        ]
        meter = _Meter(sum(info.num_frames for _, info in todo), schema.frame_nbytes, progress)
        done = _run(groups, workers, executor, meter)
        return _report(target, episodes, todo, done)
    finally:
        target.release()


@dataclass(frozen=True)
class _Group:
    """Consecutive episodes for one worker, with all that it needs to write them."""

    source: Source
    storage: Storage
    schema: Schema
    episodes: tuple[tuple[int, EpisodeInfo], ...]  # with their ordinals
    chunk_frames: int
    record_bytes: int
    skip_bad_episodes: bool

    @property
    def num_frames(self) -> int:
        return sum(info.num_frames for _, info in self.episodes)


@dataclass
class _Meter:
    """Counts frames, and tells at most ten times a second."""

    total_frames: int
    frame_nbytes: int
    progress: Callable[[Progress], None] | None
    frames: int = 0

    def add(self, frames: int) -> None:
        self.frames += frames
        if self.progress is not None:
            nbytes = self.frames * self.frame_nbytes
            self.progress(Progress(self.frames, self.total_frames, nbytes))


def _write_group(
    group: _Group, advance: Callable[[int], None] = lambda frames: None
) -> list[BadEpisode]:
    """Write one group; the task of a worker. `advance` is called with frames done."""
    bad = []
    files = RecordFileWriter(group.storage, group.schema, record_bytes=group.record_bytes)
    try:
        for ordinal, info in group.episodes:
            files.begin(
                info.key,
                ordinal=ordinal,
                chunk_frames=group.chunk_frames,
                metadata=encode_metadata(dict(info.metadata)),
            )
            try:
                _write_frames(files, group, info, advance)
                files.end()
            except SourceError as error:
                if not group.skip_bad_episodes:
                    raise
                files.drop()
                bad.append(BadEpisode(info.key, str(error)))
    finally:
        # Also after an error or an interrupt: episodes that have ended are kept for a resume.
        files.close()
        group.storage.close()
    return bad


def _write_frames(
    files: RecordFileWriter, group: _Group, info: EpisodeInfo, advance: Callable[[int], None]
) -> None:
    count = 0
    for frame in group.source.frames(info):
        try:
            files.append({name: frame[name] for name in group.schema if name in frame})
        except FrameError as error:
            raise SourceError(error.message, **error.facts()) from error
        count += 1
        advance(1)
    if count != info.num_frames:
        raise SourceError(
            "the source yields another number of frames than it lists",
            episode=info.key,
            expected=info.num_frames,
            got=count,
        )


def _run(
    groups: Sequence[_Group], workers: int | None, executor: Executor | None, meter: _Meter
) -> list[BadEpisode]:
    if executor is not None:
        return _run_on(executor, groups, meter, channel=None)
    count = min(workers or len(os.sched_getaffinity(0)), len(groups))
    if count <= 1:
        return [bad for group in groups for bad in _write_group(group, meter.add)]
    with _pool(count) as (pool, channel):
        return _run_on(pool, groups, meter, channel)


def _run_on(
    executor: Executor, groups: Sequence[_Group], meter: _Meter, channel: _Channel | None
) -> list[BadEpisode]:
    """Run the groups, largest first so that none is left for the end."""
    task = _write_group if channel is None else _write_group_in_pool
    order = sorted(groups, key=lambda group: group.num_frames, reverse=True)
    futures: dict[Future[list[BadEpisode]], _Group] = {executor.submit(task, g): g for g in order}
    pending = set(futures)
    bad: list[BadEpisode] = []
    try:
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
            for future in done:
                bad += future.result()
                if channel is None:
                    meter.add(futures[future].num_frames)
            if channel is not None:
                meter.add(channel.take())
        if channel is not None:
            meter.add(channel.take())
    except BaseException:
        for future in pending:
            future.cancel()
        if channel is not None:
            channel.stop.set()
        wait(pending)
        raise
    return bad


@dataclass
class _Channel:
    """How pool workers tell their progress and hear that they should stop."""

    frames: Any = field(repr=False)  # multiprocessing.SimpleQueue of frame counts
    stop: Any = field(repr=False)  # multiprocessing.Event

    def take(self) -> int:
        total = 0
        while not self.frames.empty():
            total += self.frames.get()
        return total


class _StoppedError(SeqRecordError):
    """The parent asked the workers to stop."""


_worker_channel: _Channel | None = None


@contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, _Channel]]:
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    channel = _Channel(context.SimpleQueue(), context.Event())
    pool = ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(channel.frames, channel.stop)
    )
    try:
        yield pool, channel
    finally:
        channel.stop.set()
        pool.shutdown(cancel_futures=True)


def _start_worker(frames: Any, stop: Any) -> None:
    global _worker_channel
    _worker_channel = _Channel(frames, stop)
    # Ctrl-C reaches the whole process group; the parent alone decides, by `stop`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed parent must not leave workers that go on writing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _write_group_in_pool(group: _Group) -> list[BadEpisode]:
    channel = _worker_channel
    assert channel is not None

    def advance(frames: int) -> None:
        if channel.stop.is_set():
            raise _StoppedError("stopped")
        channel.frames.put(frames)

    return _write_group(group, advance)


def _grouped(
    episodes: Sequence[tuple[int, EpisodeInfo]], frame_nbytes: int, record_bytes: int
) -> Iterator[list[tuple[int, EpisodeInfo]]]:
    """Consecutive episodes that decode to about a record file or more."""
    group: list[tuple[int, EpisodeInfo]] = []
    frames = 0
    for ordinal, info in episodes:
        group.append((ordinal, info))
        frames += info.num_frames
        if frames * frame_nbytes >= record_bytes:
            yield group
            group, frames = [], 0
    if group:
        yield group


def _check_episodes(episodes: Sequence[EpisodeInfo]) -> None:
    if not episodes:
        raise SourceError("the source has no episodes")
    seen: set[str] = set()
    for info in episodes:
        try:
            check_key(info.key)
        except FormatError as error:
            raise SourceError(error.message, **error.facts()) from error
        if info.key in seen:
            raise SourceError("two episodes of one key", episode=info.key)
        seen.add(info.key)


def _report(
    target: Destination,
    episodes: Sequence[EpisodeInfo],
    todo: Sequence[tuple[int, EpisodeInfo]],
    bad: Sequence[BadEpisode],
) -> ConvertReport:
    order = {info.key: position for position, (_, info) in enumerate(todo)}
    left_out = {episode.key for episode in bad}
    written = tuple(key for key in order if key not in left_out)
    if not written and not target.finished:
        raise DestinationError(
            f"no episode could be written; the first was left out because of this: {bad[0].error}",
            file=target.storage.url,
        )
    return ConvertReport(
        manifest=target.commit(CREATED_BY),
        written=written,
        skipped=tuple(info.key for info in episodes if info.key not in order),
        bad=tuple(sorted(bad, key=lambda episode: order[episode.key])),
    )
