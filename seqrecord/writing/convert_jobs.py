"""Jobs: what one worker of a conversion writes in one go."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqrecord.errors import CodecError, FrameError, SeqRecordError, SourceError
from seqrecord.format.text import encode_metadata
from seqrecord.schema import Schema
from seqrecord.sources import EpisodeInfo, Source
from seqrecord.statistics.by_feature import Statistics
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.storage import Storage
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import check_fps

__all__ = [
    "BadEpisode",
    "Job",
    "StoppedError",
    "Written",
    "cut_in_jobs",
    "frame_work",
    "write_copy",
    "write_job",
]

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
    """What came of a job: the episodes that were left out, and statistics of the others.

    `frames` counts those of episodes that were left out, too, as far as they were read.
    """

    frames: int
    bad: tuple[BadEpisode, ...]
    statistics: Statistics | None


@dataclass(frozen=True)
class Job:
    """Consecutive episodes for one worker, with all that it needs to write them."""

    source: Source
    storage: Storage
    schema: Schema
    writer: str  # the id that all workers share
    episodes: tuple[tuple[int, EpisodeInfo], ...]  # with their ordinals
    chunk_frames: int | None
    record_bytes: int
    skip_bad_episodes: bool
    statistics: bool

    @property
    def num_frames(self) -> int:
        return sum(info.num_frames for _, info in self.episodes)


def frame_work(schema: Schema) -> int:
    """The bytes of a frame of a source's schema, in which video that is kept counts little.

    Hardly anything is done to that: a process which packs little of it takes longer to start than
    to work.
    """
    return sum(
        -(-spec.nbytes // KEPT_COST) if spec.is_video else spec.nbytes for spec in schema.values()
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
    with RecordFileWriter(
        job.storage,
        job.schema,
        writer=job.writer,
        record_bytes=job.record_bytes,
        statistics=collector,
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
                _write_frames(files, job, info, count)
            except SourceError as error:
                if not job.skip_bad_episodes:
                    raise SourceError(
                        f"{error.message}; to pack the other episodes, resume with "
                        "skip_bad_episodes (--resume --skip-bad-episodes)",
                        **error.facts(),
                    ) from error
                files.drop()
                bad.append(BadEpisode(info.key, str(error)))
            else:
                files.end()
    return Written(frames, tuple(bad), None if collector is None else collector.statistics())


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
    videos = getattr(job.source, "videos", None)
    kept = videos(info) if videos is not None else {}
    with _misfits():
        for name, parts in kept.items():
            for part in parts:
                files.append_video(name, part)
                advance(0)  # or nothing would stop it
    has_others = len(kept) < len(job.schema.kept)
    for frame in job.source.frames(info):
        count += 1
        if count > info.num_frames:
            break
        with _misfits():
            if not frame and videos is None:
                raise FrameError("a frame without any feature", episode=info.key, frame=count - 1)
            if has_others:
                files.append(frame)
        advance(1)
    if count != info.num_frames or count == 0:
        raise SourceError(
            "the source yields another number of frames than it lists",
            episode=info.key,
            expected=max(info.num_frames, 1),
            got=f"{count} or more" if count > info.num_frames else count,
        )
    with _misfits():
        files.check_even()


@contextlib.contextmanager
def _misfits() -> Iterator[None]:
    """What does not fit the schema is the original's fault."""
    try:
        yield
    except (FrameError, CodecError) as error:
        raise SourceError(error.message, **error.facts()) from error
