"""Groups of episodes: what one worker of a conversion writes in one go."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqrecord.collecting import StatisticsCollector
from seqrecord.errors import CodecError, FrameError, SourceError
from seqrecord.format.text import encode_metadata
from seqrecord.schema import Schema
from seqrecord.sources import EpisodeInfo, Source
from seqrecord.statistics import Statistics
from seqrecord.storage import Storage
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import check_fps

__all__ = ["BadEpisode", "Group", "Written", "cut_in_groups", "write_copy", "write_group"]


@dataclass(frozen=True)
class BadEpisode:
    """An episode that was left out, and why."""

    key: str
    error: str


@dataclass(frozen=True)
class Written:
    """What came of a group: the episodes that were left out, and statistics of the others."""

    bad: tuple[BadEpisode, ...]
    statistics: Statistics | None


@dataclass(frozen=True)
class Group:
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


def cut_in_groups(
    episodes: Sequence[tuple[int, EpisodeInfo]], frame_nbytes: int, group_bytes: int
) -> Iterator[tuple[tuple[int, EpisodeInfo], ...]]:
    """Consecutive episodes that decode to `group_bytes` or more."""
    group: list[tuple[int, EpisodeInfo]] = []
    frames = 0
    for ordinal, info in episodes:
        group.append((ordinal, info))
        frames += info.num_frames
        if frames * frame_nbytes >= group_bytes:
            yield tuple(group)
            group, frames = [], 0
    if group:
        yield tuple(group)


def write_group(group: Group, advance: Callable[[int], None] | None = None) -> Written:
    """Write one group into record files of its own. `advance` is called with frames done."""
    bad = []
    collector = StatisticsCollector(group.schema) if group.statistics else None
    files = RecordFileWriter(
        group.storage,
        group.schema,
        writer=group.writer,
        record_bytes=group.record_bytes,
        statistics=collector,
    )
    try:
        for ordinal, info in group.episodes:
            files.begin(
                info.key,
                ordinal=ordinal,
                chunk_frames=group.chunk_frames,
                metadata=encode_metadata(dict(info.metadata)),
                fps=check_fps(info.fps),
            )
            try:
                _write_frames(files, group, info, advance)
            except SourceError as error:
                if not group.skip_bad_episodes:
                    raise SourceError(
                        f"{error.message}; to pack the other episodes, resume with "
                        "skip_bad_episodes (--resume --skip-bad-episodes)",
                        **error.facts(),
                    ) from error
                files.drop()
                bad.append(BadEpisode(info.key, str(error)))
            else:
                files.end()
    except BaseException:
        # Also after an error or an interrupt: episodes that have ended are kept for a resume.
        files.leave()
        raise
    files.close()
    return Written(tuple(bad), None if collector is None else collector.statistics())


def write_copy(group: Group, advance: Callable[[int], None] | None = None) -> Written:
    """`write_group` on a copy: workers share neither source nor storage, be they threads or not."""
    copy: Group = pickle.loads(pickle.dumps(group))  # noqa: S301 - our own
    try:
        return write_group(copy, advance)
    finally:
        copy.storage.close()


def _write_frames(
    files: RecordFileWriter,
    group: Group,
    info: EpisodeInfo,
    advance: Callable[[int], None] | None,
) -> None:
    count = 0
    for frame in group.source.frames(info):
        count += 1
        if count > info.num_frames:
            break
        try:
            files.append(frame)
        except (FrameError, CodecError) as error:
            raise SourceError(error.message, **error.facts()) from error
        if advance is not None:
            advance(1)
    if count != info.num_frames or count == 0:
        raise SourceError(
            "the source yields another number of frames than it lists",
            episode=info.key,
            expected=max(info.num_frames, 1),
            got=f"{count} or more" if count > info.num_frames else count,
        )
