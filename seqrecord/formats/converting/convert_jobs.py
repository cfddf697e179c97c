"""Jobs of a conversion, and their runners: this process, a pool, or an executor."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
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
from seqrecord.formats.converting.source_resizing import SourceResizing
from seqrecord.formats.converting.source_video import Change, EpisodeVideos, SourceVideo, Stream
from seqrecord.in_place.boundary import boundary, check_unexpected, guarded
from seqrecord.in_place.file_types import explained
from seqrecord.in_place.limits import check_frames
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.text import encode_metadata
from seqrecord.store.format.time_spans import CLOCKS, clock_of
from seqrecord.store.originals.inventory import format_of
from seqrecord.store.originals.protocol import (
    EpisodeInfo,
    OtherSizeError,
    Source,
    blocks_of,
    chunks_of,
    timestamps_of,
    videos_of,
)
from seqrecord.store.processes.threads import check_room
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.storage.base import Storage
from seqrecord.store.units import Progress
from seqrecord.store.writing.rates import IrregularEpisode
from seqrecord.store.writing.record_file import RecordFileWriter
from seqrecord.store.writing.stored_schema import check_fps
from seqrecord.store.writing.stored_statistics import merge_statistics
from seqrecord.version import __version__

OTHER_FEATURES = "to leave the feature out, select the others (features=, --features)"


KEPT_COST = 64  # decoded bytes of copied video take as long as one encoded byte


class StoppedError(SeqRecordError):
    """A job was asked to stop."""


@dataclass(frozen=True)
class BadEpisode:
    """An episode that was left out, and the error."""

    info: EpisodeInfo
    cause: SourceError

    @classmethod
    def of(cls, info: EpisodeInfo, error: SourceError) -> BadEpisode:
        """With a copy of the error, which keeps no frames of the stack."""
        return cls(info, type(error)(error.message, **error.context()))

    @property
    def key(self) -> str:
        return self.info.key

    @property
    def error(self) -> str:
        """The error as text."""
        return str(self.cause)

    @property
    def is_other_size(self) -> bool:
        """Whether the episode's video has another size than the first one."""
        return isinstance(self.cause, OtherSizeError)


@dataclass(frozen=True)
class JobResult:
    """Result of a job: bad episodes, statistics of the others, episodes without a constant frame
    rate.

    `frames` also counts the frames of bad episodes, as far as they were read. `codecs` has the
    number of episodes for each video feature and codec that is not the feature's, `changes` the
    number of frames whose packets were not kept.
    """

    frames: int
    bad: tuple[BadEpisode, ...]
    statistics: Statistics | None
    irregular: tuple[IrregularEpisode, ...] = ()
    codecs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    changes: Mapping[Change, int] = field(default_factory=dict)

    @classmethod
    def joined(cls, results: Sequence[JobResult]) -> JobResult:
        """The result of several jobs as if they were one."""
        codecs, changes = Counter[tuple[str, str]](), Counter[Change]()
        for result in results:
            codecs.update(result.codecs)
            changes.update(result.changes)
        return cls(
            sum(result.frames for result in results),
            tuple(bad for result in results for bad in result.bad),
            merge_statistics([result.statistics for result in results]),
            tuple(episode for result in results for episode in result.irregular),
            codecs,
            changes,
        )


@dataclass(frozen=True)
class Job:
    """Consecutive episodes for one worker, and all arguments for writing them."""

    source: Source
    storage: Storage
    schema: Schema
    writer: str  # id, shared by all workers
    episodes: tuple[tuple[int, EpisodeInfo], ...]  # with their ordinals
    chunk_frames: int | None
    max_file_size: int
    skip_bad_episodes: bool
    statistics: bool
    resizing: SourceResizing | None = None
    externals: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # see `ReferenceKind`
    checksums: bool = False  # of referenced data
    strict: bool = False  # refuse lossy changes, and video of another size
    check_video: bool = False  # decode all kept packets

    @property
    def num_frames(self) -> int:
        return sum(info.num_frames for _, info in self.episodes)

    def remedy(self, error: SourceError) -> str:
        """What the caller can do about an episode that cannot be read."""
        remedy = (
            "to pack the other episodes, resume with skip_bad_episodes (--resume "
            "--skip-bad-episodes)"
        )
        if self.externals:
            remedy = (
                "to read the other episodes in place, index them (`seqrecord index SRC -o DST "
                "--skip-bad-episodes`), and open DST"
            )
        if hasattr(self.source, "parts"):  # merge
            remedy = "`seqrecord edit delete` leaves the episode out of its dataset"
        if error.feature is not None and OTHER_FEATURES not in error.message:
            remedy += f"; {OTHER_FEATURES}"
        if format_of(self.source) == "lerobot":
            remedy += "; `seqrecord doctor` lists all problems of a LeRobot dataset"
        return remedy


def frame_cost(schema: Schema, *, copied: Collection[str] = (), in_place: bool = False) -> int:
    """Relative cost of packing a frame of `schema`, in bytes.

    Video, `copied` features, and with `in_place` references to images count 1/64 of their bytes:
    they are not encoded, so a process for them alone would take longer to start than to work.
    """
    return sum(
        -(-spec.nbytes // KEPT_COST)
        if page_kind(spec).decodes_in_order
        or spec.name in copied
        or (in_place and page_kind(spec).may_refer(spec))
        else spec.nbytes
        for spec in schema.values()
    )


def cut_in_jobs(
    episodes: Sequence[tuple[int, EpisodeInfo]], frame_bytes: int, job_bytes: int
) -> Iterator[tuple[tuple[int, EpisodeInfo], ...]]:
    """Cut the episodes into runs that decode to `job_bytes` or more."""
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


def write_job(job: Job, advance: Callable[[int], None] | None = None) -> JobResult:
    """Write a job into record files of its own. `advance` is called with numbers of frames."""
    bad, frames = [], 0

    def count(num_written: int) -> None:
        nonlocal frames
        frames += num_written
        if advance is not None:
            advance(num_written)

    collector = StatisticsCollector(job.schema) if job.statistics else None
    codecs: Counter[tuple[str, str]] = Counter()
    changes: Counter[Change] = Counter()
    tried_streams = set[Stream]()
    copied_features: frozenset[str] = getattr(job.source, "undecoded_features", frozenset())
    # Unchecked references and copies are as fast to repeat as to note for a resume.
    is_quick = (job.externals and not job.checksums) or copied_features >= job.schema.active.keys()
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
                with explained(), located(SourceError, episode=info.key):
                    videos = _write_frames(files, job, info, count, tried_streams)
                    files.end()  # which reads references' last files
            except SourceError as error:
                has_other_size = isinstance(error, OtherSizeError)
                if not (job.skip_bad_episodes or (has_other_size and not job.strict)):
                    raise SourceError(
                        f"{error.message}; {job.remedy(error)}", **error.context()
                    ) from error
                files.drop()
                bad.append(BadEpisode.of(info, error))
                check_unexpected(episode.cause for episode in bad)
            else:
                for video in videos:
                    codecs.update(video.codecs)
                    changes.update(video.changes)
    statistics = None if collector is None else collector.statistics()
    return JobResult(frames, tuple(bad), statistics, tuple(files.irregular), codecs, changes)


@dataclass(frozen=True)
class PackedJob:
    """A job for a worker, pickled as bytes beside the package's version.

    A worker with another version compares the versions before it unpickles the job. Later versions
    must keep this class and its fields, and the functions that workers run.
    """

    job: Job | bytes
    version: str = __version__

    def __reduce__(self) -> tuple[type[PackedJob], tuple[bytes, str]]:
        return PackedJob, (self._bytes(), self.version)

    def unpacked(self) -> Job:
        """Return a copy of the job.

        Raises `DestinationError` if this process has another version of the package, or lacks a
        module or class of the job.
        """
        if self.version != __version__:
            raise DestinationError(
                "a worker has another version of seqrecord; install the same one on all workers",
                expected=self.version,
                got=__version__,
            )
        try:
            job: Job = pickle.loads(self._bytes())  # noqa: S301 - our own
        except (ImportError, AttributeError) as error:
            raise DestinationError(
                "a worker cannot import a part of its job; install the same packages on all "
                "workers, and define a source of your own in a module that they can import",
                got=str(error),
            ) from error
        return job

    def _bytes(self) -> bytes:
        return self.job if isinstance(self.job, bytes) else pickle.dumps(self.job)


def write_copy(job: PackedJob, advance: Callable[[int], None] | None = None) -> JobResult:
    """Run `write_job` on a copy of the job, so that workers share neither source nor storage."""
    copy = job.unpacked()
    try:
        return write_job(copy, advance)
    finally:
        copy.storage.close()


def requested_features(source: Source) -> Sequence[str]:
    """The features that a source was asked for; none if it was asked for all."""
    features = getattr(source, "features", None)  # any value in a user's own source
    return features if isinstance(features, list | tuple) else ()


def _write_frames(
    files: RecordFileWriter,
    job: Job,
    info: EpisodeInfo,
    advance: Callable[[int], None],
    tried_streams: set[Stream],
) -> list[SourceVideo]:
    """Write an episode; returns its videos. `tried_streams` is of the job, see `SourceVideo`."""
    count, source = 0, job.source
    with located(SourceError, episode=info.key):
        check_frames(info.num_frames)
    with boundary(episode=info.key):
        parts = videos_of(source, info)
    parts = {name: guarded(video, episode=info.key) for name, video in parts.items()}
    checks = {"strict": job.strict, "decodes": job.check_video}
    videos = EpisodeVideos(
        source,
        parts,
        job.schema,
        info.num_frames,
        resizing=job.resizing,
        tried_streams=tried_streams,
        **checks,
    )
    with _as_source_errors():
        for chunk, times in chunks_of(source, info):
            files.append_chunk(chunk, times)
            advance(0)
        for name, part in videos.parts():
            files.append_video(name, part)
            advance(0)  # so that a stop is noticed
    with boundary(episode=info.key):
        blocks = blocks_of(source, info)
    has_frames_only = not hasattr(source, "videos")
    has_frames_only &= not getattr(source, "has_empty_frames", False)
    has_frames_only &= not requested_features(source)  # a frame may lack all of these
    for block in guarded(blocks, episode=info.key):
        start, count = count, count + block.num_frames
        if count > info.num_frames:
            break
        with _as_source_errors():
            if not block.columns and has_frames_only:
                raise FrameError("frame without features", episode=info.key, frame=start)
            for stored_block in videos.blocks(block):
                files.append(stored_block)
        advance(block.num_frames)
    if count != info.num_frames or count == 0:
        raise SourceError(
            "source yields a different number of frames than it lists",
            episode=info.key,
            expected=max(info.num_frames, 1),
            got=f"{count} or more" if count > info.num_frames else count,
        )
    videos.finish()
    _check_rate(files, job, info)
    with _as_source_errors():
        files.check_lengths()
    return [*videos.videos.values()]


def _check_rate(files: RecordFileWriter, job: Job, info: EpisodeInfo) -> None:
    """Compare the episode's fps with the times of the original, if no feature surely has them.

    The only timestamp among selected features need not be the clock of all.
    """
    if info.fps is None or clock_of(job.schema) in CLOCKS:
        return
    with boundary(episode=info.key):
        times = timestamps_of(job.source, info)
    if times is not None:
        files.check_times(times)


@contextlib.contextmanager
def _as_source_errors() -> Iterator[None]:
    """Raise errors about frames that do not fit the schema as `SourceError`."""
    try:
        yield
    except (FrameError, CodecError) as error:
        raise SourceError(error.message, **error.context()) from error


_REPORT_SECONDS = 0.1
_POOL_THREADS = 2  # of a process pool, which waits for ever if one cannot start


@dataclass
class Meter:
    """Counts frames, and reports at most ten times per second."""

    total_frames: int
    frame_nbytes: int
    progress: Callable[[Progress], None] | None
    frames: int = 0
    _reported: float = 0.0

    def add(self, frames: int) -> None:
        # A job that another worker repeats counts its frames again.
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
    """Runs jobs in parallel on an executor; base class of the other runners."""

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)
    """Errors of a job whose worker is gone."""
    count: int | None = None
    """Number of parallel jobs; `None` if unknown."""
    min_job_bytes = 128 << 20
    """Decoded bytes of the smallest jobs that are worth a worker."""

    def __init__(
        self, executor: Any = None, run: Callable[[PackedJob], JobResult] = write_copy
    ) -> None:
        self._executor, self._run = executor, run

    @property
    def has_begun(self) -> bool:
        """Whether any worker has started; true if unknown."""
        return True

    def submit(self, job: Job) -> Future[JobResult]:
        """Start a job."""
        future: Future[JobResult] = self._executor.submit(self._run, PackedJob(job))
        return future

    def take(self) -> int | None:
        """Number of frames written since the last call; `None` if only results have it."""
        return None

    def stop(self) -> None:
        """Ask running jobs to stop soon; they then fail."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    processes: int,
    workers: Workers | None,
    meter: Meter,
) -> list[JobResult]:
    """Write all jobs on `workers`, or else on `processes` processes including this one.

    Returns a result for each job, in order.
    """
    processes = min(processes, len(jobs))
    if workers is not None:
        results = _run_on(workers, jobs, meter)
    elif processes <= 1:
        results = [write_job(job, meter.add) for job in jobs]
    else:
        with _worker_processes(processes, len(jobs)) as pool:
            results = _run_on(pool, jobs, meter)
    meter.report()
    return results


def _run_on(workers: Workers, jobs: Sequence[Job], meter: Meter) -> list[JobResult]:
    """Run the jobs, the largest first to keep the last ones short."""
    futures: dict[int, Future[JobResult]] = {}
    try:
        # Results keep the jobs' order: tests/formats/test_convert.py has
        # test_the_dataset_does_not_depend_on_the_workers.
        for number in sorted(range(len(jobs)), key=lambda n: jobs[n].num_frames, reverse=True):
            futures[number] = workers.submit(jobs[number])
        pending = set(futures.values())
        while pending:
            done_futures, pending = wait(
                pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED"
            )
            done_frames, frames = (
                sum(future.result().frames for future in done_futures),
                workers.take(),
            )
            if new_frames := done_frames if frames is None else frames:
                meter.add(new_frames)
    except BaseException as error:
        workers.stop()
        wait([future for future in futures.values() if not future.cancel()])
        if not isinstance(error, workers.broken):
            raise
        if not workers.has_begun:
            raise _unguarded_script() from error
        raise DestinationError(
            "a worker died before its job was done (killed, or out of memory?); fewer workers "
            "(--workers) need less memory",
            file=jobs[0].storage.url,
            got=str(error).partition("\n")[0] or type(error).__name__,
        ) from error
    results = [futures[number].result() for number in range(len(jobs))]
    meter.frames = max(meter.frames, sum(job_result.frames for job_result in results))
    return results


class _Processes(Workers):
    """Workers that are processes of this machine.

    Shared memory has a counter for each job and a stop flag. It needs no lock, which a killed
    worker could leave locked.
    """

    def __init__(self, executor: Executor, count: int, shared: _Shared) -> None:
        super().__init__(executor)
        self.count = count
        self._shared, self._jobs, self._reported_frames = shared, 0, 0

    @property
    def has_begun(self) -> bool:
        return bool(self._shared.has_started.value)

    def submit(self, job: Job) -> Future[JobResult]:
        self._jobs += 1
        try:
            with _interrupts_blocked():
                number = self._jobs - 1
                future: Future[JobResult] = self._executor.submit(
                    _write_in_pool, number, PackedJob(job)
                )
                return future
        except OSError as error:
            raise ResourceError(
                f"no worker process can be started: {error}; raise the limit of processes and "
                "threads, or use fewer workers",
            ) from error

    def take(self) -> int:
        previous_frames, self._reported_frames = self._reported_frames, sum(self._shared.frames)
        return self._reported_frames - previous_frames

    def stop(self) -> None:
        self._shared.stop.value = True


@dataclass(frozen=True)
class _Shared:
    """State that this process shares with its workers, as raw ctypes."""

    frames: Any  # int64 [jobs]: frames written
    has_started: Any  # bool: whether any worker has started
    stop: Any  # bool: whether jobs should stop


@contextlib.contextmanager
def _worker_processes(count: int, num_jobs: int) -> Iterator[_Processes]:
    """Start `count` processes, and end them with the block.

    Raises `ResourceError` if the system refuses another process or thread, and `DestinationError`
    in a process that multiprocessing started and that is still importing the script.
    """
    if _is_importing_script():
        raise _unguarded_script()
    check_room(_POOL_THREADS)
    # Its price: tests/formats/test_convert.py::test_script_without_a_main_guard_gets_an_error.
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    flags = context.RawValue("b", 0), context.RawValue("b", 0)
    shared = _Shared(context.RawArray("q", num_jobs), *flags)
    with _interrupts_blocked():  # multiprocessing starts a process that tracks semaphores
        pool = ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(shared,))
    try:
        yield _Processes(pool, count, shared)
    finally:
        shared.stop.value = True
        pool.shutdown(cancel_futures=True)


def _is_importing_script() -> bool:
    """Whether multiprocessing started this process, and it is still importing the parent's script.

    The script has another module name than `__main__` until its import has finished.
    """
    script = sys.modules.get("__mp_main__")
    return script is not None and script is not sys.modules.get("__main__")


def _unguarded_script() -> DestinationError:
    """Error for a script without a `__main__` guard, in which each worker would start workers."""
    return DestinationError(
        "no worker process could start. Workers import the calling script, so its code must be "
        'below `if __name__ == "__main__":`. If it is, read the output of the processes; fewer '
        "workers need less memory, and workers=1 runs in this process",
    )


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hide Ctrl-C and SIGHUP from processes started here, although a process group gets them.

    This process sees the signals at the end of the block, and decides alone.
    """
    hidden_signals = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, hidden_signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


# In a worker process

_shared: _Shared


def _start_worker(shared: _Shared) -> None:
    global _shared
    _shared = shared
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # an executor ends workers by it
    shared.has_started.value = True
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this worker process when its parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _write_in_pool(number: int, job: PackedJob) -> JobResult:
    shared = _shared

    def advance(frames: int) -> None:
        if shared.stop.value:
            raise StoppedError("stopped")
        shared.frames[number] += frames

    return write_copy(job, advance)
