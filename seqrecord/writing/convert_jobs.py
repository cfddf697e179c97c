"""Jobs of a conversion, and what runs them: this process, others, an executor, or a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from typing import Any

from seqrecord.errors import (
    CodecError,
    DestinationError,
    FrameError,
    ResourceError,
    SeqRecordError,
    SourceError,
    located,
)
from seqrecord.format.lags import clock_of
from seqrecord.format.text import encode_metadata
from seqrecord.processes.threads import check_room
from seqrecord.schema import Schema
from seqrecord.sources import EpisodeInfo, Source
from seqrecord.sources.base import blocks_of
from seqrecord.sources.common.file_types import explained
from seqrecord.sources.common.limits import check_frames
from seqrecord.sources.inventory import format_of
from seqrecord.statistics.by_feature import Statistics
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.storage import Storage
from seqrecord.writing.rates import Irregular
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import check_fps

KEPT_COST = 64  # decoded bytes of video that is kept take as long as one byte that is encoded


class StoppedError(SeqRecordError):
    """A job was asked to stop."""


@dataclass(frozen=True)
class BadEpisode:
    """An episode that was left out, and why."""

    key: str
    error: str


@dataclass(frozen=True)
class Written:
    """What came of a job: the episodes that were left out, statistics of the others, and those of
    which timestamps contradict the fps.

    `frames` counts those of episodes that were left out, too, as far as they were read.
    """

    frames: int
    bad: tuple[BadEpisode, ...]
    statistics: Statistics | None
    irregular: tuple[Irregular, ...] = ()


@dataclass(frozen=True)
class Job:
    """Consecutive episodes for one worker, with all that it needs to write them."""

    source: Source
    storage: Storage
    schema: Schema
    writer: str  # the id that all workers share
    episodes: tuple[tuple[int, EpisodeInfo], ...]  # with their ordinals
    chunk_frames: int | None
    max_file_size: int
    skip_bad_episodes: bool
    statistics: bool
    externals: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # see `VideoGroup`
    checksums: bool = False  # of what is referred to

    @property
    def num_frames(self) -> int:
        return sum(info.num_frames for _, info in self.episodes)


def frame_work(schema: Schema, *, copied: Collection[str] = (), in_place: bool = False) -> int:
    """The bytes of a frame of a source's schema, in which video that is kept and features that are
    `copied` count little, and with `in_place` images that are.

    Hardly anything is done to that: a process which packs little of it takes longer to start than
    to work.
    """
    return sum(
        -(-spec.nbytes // KEPT_COST)
        if spec.is_video or spec.name in copied or (in_place and spec.may_be_referred_to)
        else spec.nbytes
        for spec in schema.values()
    )


def cut_in_jobs(
    episodes: Sequence[tuple[int, EpisodeInfo]], frame_bytes: int, job_bytes: int
) -> Iterator[tuple[tuple[int, EpisodeInfo], ...]]:
    """Consecutive episodes that decode to `job_bytes` or more."""
    job: list[tuple[int, EpisodeInfo]] = []
    frames = 0
    for ordinal, info in episodes:
        job.append((ordinal, info))
        frames += info.num_frames
        if frames * frame_bytes >= job_bytes:
            yield tuple(job)
            job, frames = [], 0
    if job:
        yield tuple(job)


def write_job(job: Job, advance: Callable[[int], None] | None = None) -> Written:
    """Write one job into record files of its own. `advance` is called with frames done."""
    bad, frames = [], 0

    def count(written: int) -> None:
        nonlocal frames
        frames += written
        if advance is not None:
            advance(written)

    collector = StatisticsCollector(job.schema) if job.statistics else None
    copied: frozenset[str] = getattr(job.source, "copied_features", frozenset())
    # References to files that are not read, and copies, are made again in the time of their notes.
    is_quick = (job.externals and not job.checksums) or copied >= job.schema.active.keys()
    with RecordFileWriter(
        job.storage,
        job.schema,
        writer=job.writer,
        max_file_size=job.max_file_size,
        statistics=collector,
        externals=job.externals,
        checksums=job.checksums,
        notes=not is_quick,
    ) as files:
        for ordinal, info in job.episodes:
            files.begin(
                info.key,
                ordinal=ordinal,
                chunk_frames=job.chunk_frames,
                metadata=encode_metadata(dict(info.metadata)),
                fps=check_fps(info.fps),
            )
            try:
                with explained():
                    _write_frames(files, job, info, count)
            except SourceError as error:
                if not job.skip_bad_episodes:
                    others = (
                        "to pack the other episodes, resume with skip_bad_episodes (--resume "
                        "--skip-bad-episodes)"
                    )
                    if job.externals:
                        others = (
                            "to read the other episodes in place, index them with convert(…, "
                            "in_place=True, skip_bad_episodes=True), and open that"
                        )
                    if hasattr(job.source, "parts"):  # of a merge
                        others = "`seqrecord edit delete` leaves the episode out of its dataset"
                    if format_of(job.source) == "lerobot":
                        others += "; `seqrecord doctor` lists all problems of a LeRobot dataset"
                    raise SourceError(
                        f"{error.message}; {others}",
                        **error.context(),
                    ) from error
                files.drop()
                bad.append(BadEpisode(info.key, str(error)))
            else:
                files.end()
    statistics = None if collector is None else collector.statistics()
    return Written(frames, tuple(bad), statistics, tuple(files.irregular))


def write_copy(job: Job, advance: Callable[[int], None] | None = None) -> Written:
    """`write_job` on a copy: workers share neither source nor storage, be they threads or not."""
    copy: Job = pickle.loads(pickle.dumps(job))  # noqa: S301 - our own
    try:
        return write_job(copy, advance)
    finally:
        copy.storage.close()


def _write_frames(
    files: RecordFileWriter,
    job: Job,
    info: EpisodeInfo,
    advance: Callable[[int], None],
) -> None:
    count = 0
    with located(SourceError, episode=info.key):
        check_frames(info.num_frames)
    videos = getattr(job.source, "videos", None)
    kept = videos(info) if videos is not None else {}
    chunks = getattr(job.source, "chunks", None)
    with _misfits():
        for chunk, times in chunks(info) if chunks is not None else ():
            files.append_chunk(chunk, times)
            advance(0)
        for name, parts in kept.items():
            for part in parts:
                files.append_video(name, part)
                advance(0)  # or nothing would stop it
    has_others = len(kept) < len(job.schema.active)
    for block in blocks_of(job.source, info):
        before, count = count, count + block.num_frames
        if count > info.num_frames:
            break
        with _misfits():
            if not block.columns and videos is None and chunks is None:
                raise FrameError("a frame without any feature", episode=info.key, frame=before)
            if has_others:
                files.append(block)
        advance(block.num_frames)
    if count != info.num_frames or count == 0:
        raise SourceError(
            "the source yields another number of frames than it lists",
            episode=info.key,
            expected=max(info.num_frames, 1),
            got=f"{count} or more" if count > info.num_frames else count,
        )
    timestamps = getattr(job.source, "timestamps", None)
    if info.fps is not None and timestamps is not None and clock_of(job.schema) is None:
        files.check_times(timestamps(info))
    with _misfits():
        files.check_even()


@contextlib.contextmanager
def _misfits() -> Iterator[None]:
    """What does not fit the schema is the original's fault."""
    try:
        yield
    except (FrameError, CodecError) as error:
        raise SourceError(error.message, **error.context()) from error


_REPORT_SECONDS = 0.1
_POOL_THREADS = 2  # of a pool of processes, which waits for ever for one that cannot start


@dataclass(frozen=True)
class Progress:
    """How far a conversion or an export is. `total_frames` counts those of bad episodes too."""

    frames: int
    total_frames: int
    raw_bytes: int  # decoded bytes of the frames so far


@dataclass
class Meter:
    """Counts frames, and reports at most ten times a second."""

    total_frames: int
    frame_nbytes: int
    progress: Callable[[Progress], None] | None
    frames: int = 0
    _reported: float = 0.0

    def add(self, frames: int) -> None:
        # A job that is done again, by another worker, tells its frames again.
        self.frames = min(self.frames + frames, self.total_frames)
        if time.monotonic() - self._reported >= _REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Report now."""
        if self.progress is not None:
            nbytes = self.frames * self.frame_nbytes
            self.progress(Progress(self.frames, self.total_frames, nbytes))
        self._reported = time.monotonic()


class Workers:
    """Runs jobs, several at a time: by an executor of the caller's, or what inherits this."""

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)
    """How a job fails whose worker has gone."""
    count: int | None = None
    """How many jobs run at a time; `None` where nobody tells."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun, as far as is known."""
        return True

    def submit(self, job: Job) -> Future[Written]:
        """Have a job done."""
        return self._executor.submit(write_copy, job)

    def take(self) -> int | None:
        """How many frames have been written since; `None` where nobody tells."""
        return None

    def stop(self) -> None:
        """Tell the jobs that run to stop soon, which fail then."""


@contextlib.contextmanager
def given_workers(executor: Executor | str | None) -> Iterator[Workers | None]:
    """Those of an executor, or of a cluster at this address, as long as the block runs."""
    if isinstance(executor, str):
        from seqrecord.writing.clusters import open_cluster  # only where one is used

        with open_cluster(executor) as cluster:
            yield cluster
    else:
        yield None if executor is None else Workers(executor)


def run_jobs(
    jobs: Sequence[Job], *, processes: int, workers: Workers | None, meter: Meter
) -> list[Written]:
    """Write all jobs, on `workers`, or else on so many processes, one being this process.

    Returns what came of each, in their order.
    """
    processes = min(processes, len(jobs))
    if workers is not None:
        written = _run_on(workers, jobs, meter)
    elif processes <= 1:
        written = [write_job(job, meter.add) for job in jobs]
    else:
        with _worker_processes(processes, len(jobs)) as pool:
            written = _run_on(pool, jobs, meter)
    meter.report()
    return written


def _run_on(workers: Workers, jobs: Sequence[Job], meter: Meter) -> list[Written]:
    """Run the jobs, largest first so that none is left for the end."""
    futures: dict[int, Future[Written]] = {}
    try:
        for number in sorted(range(len(jobs)), key=lambda n: jobs[n].num_frames, reverse=True):
            futures[number] = workers.submit(jobs[number])
        pending = set(futures.values())
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
            frames = workers.take()
            ended = sum(future.result().frames for future in done)
            if new := ended if frames is None else frames:
                meter.add(new)
    except workers.broken as error:
        wait(futures.values())
        workers.take()
        if not workers.has_begun:
            raise _unguarded_script() from error
        raise DestinationError(
            "a worker ended before its work did (killed, or out of memory?)",
            file=jobs[0].storage.url,
            expected="workers that end by themselves; fewer of them (--workers) need less memory",
        ) from error
    except BaseException:
        workers.stop()
        wait([future for future in futures.values() if not future.cancel()])
        raise
    written = [futures[number].result() for number in range(len(jobs))]
    meter.frames = max(meter.frames, sum(each.frames for each in written))
    return written


class _Processes(Workers):
    """Workers that are processes of this machine.

    They share memory with this one, in which each job's frames are counted in a place of its own,
    and read there that they should stop. There is no lock, which a killed worker could hold for
    ever.
    """

    def __init__(self, executor: Executor, count: int, shared: _Shared) -> None:
        super().__init__(executor)
        self.count = count
        self._shared, self._jobs, self._taken = shared, 0, 0

    @property
    def has_begun(self) -> bool:
        return bool(self._shared.begun.value)

    def submit(self, job: Job) -> Future[Written]:
        self._jobs += 1
        try:
            with _interrupts_blocked():
                return self._executor.submit(_write_in_pool, self._jobs - 1, job)
        except OSError as error:
            raise ResourceError(
                f"no worker process can be started: {error}",
                expected="a limit of processes and threads that leaves room for some more, or "
                "fewer workers",
            ) from error

    def take(self) -> int:
        before, self._taken = self._taken, sum(self._shared.frames)
        return self._taken - before

    def stop(self) -> None:
        self._shared.stop.value = True


@dataclass(frozen=True)
class _Shared:
    """What this process and its workers share, as raw ctypes."""

    frames: Any  # int64 [jobs]: how many each has written
    begun: Any  # bool: whether any worker has begun
    stop: Any  # bool: whether jobs should stop


@contextlib.contextmanager
def _worker_processes(count: int, num_jobs: int) -> Iterator[_Processes]:
    """Start `count` processes, and end them when the block is left.

    Raises `ResourceError` where the system lets no process or no thread start, and
    `DestinationError` in a process that was itself started, and imports a script yet.
    """
    if _is_importing_script():
        raise _unguarded_script()
    check_room(_POOL_THREADS)
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    raw = context.RawArray("q", num_jobs), context.RawValue("b", 0), context.RawValue("b", 0)
    shared = _Shared(*raw)
    pool = ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(shared,))
    try:
        yield _Processes(pool, count, shared)
    finally:
        shared.stop.value = True
        pool.shutdown(cancel_futures=True)


def _is_importing_script() -> bool:
    """Whether this process was started by multiprocessing, and imports the script of the other yet.

    It does so under another name than `__main__`, which the script gets when it is imported.
    """
    script = sys.modules.get("__mp_main__")
    return script is not None and script is not sys.modules.get("__main__")


def _unguarded_script() -> DestinationError:
    """No worker process begins where each starts others, as a script does that has no guard."""
    return DestinationError(
        "no worker process could begin. Each imports the script that calls convert, so what the "
        'script runs must stand below `if __name__ == "__main__":`. Where it does, see what the '
        "processes said; fewer workers take less memory, and workers=1 stays in this process",
    )


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which reaches the whole process group.

    The parent sees it when the block ends, and it alone decides.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker process

_shared: _Shared


def _start_worker(shared: _Shared) -> None:
    global _shared
    _shared = shared
    shared.begun.value = True
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed parent must not leave workers that continue to write."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _write_in_pool(number: int, job: Job) -> Written:
    shared = _shared

    def advance(frames: int) -> None:
        if shared.stop.value:
            raise StoppedError("stopped")
        shared.frames[number] += frames

    return write_copy(job, advance)
