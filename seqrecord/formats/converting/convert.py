"""Conversion of a source into a dataset, on many processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from seqrecord.errors import DestinationError, SourceError
from seqrecord.formats.converting.clusters import open_workers
from seqrecord.formats.converting.convert_jobs import (
    BadEpisode,
    Job,
    JobResult,
    Meter,
    Workers,
    cut_in_jobs,
    requested_features,
    run_jobs,
)
from seqrecord.formats.converting.described_source import DescribedSource
from seqrecord.formats.converting.packing import Packing
from seqrecord.formats.converting.source_video import with_videos
from seqrecord.in_place.boundary import check_unexpected
from seqrecord.store.format.index import Index
from seqrecord.store.format.inventory import Inventory, LeftOut
from seqrecord.store.format.manifest import Dictionary, Manifest
from seqrecord.store.format.rows import num_absent
from seqrecord.store.originals.protocol import EpisodeInfo, Source
from seqrecord.store.processes.machine import usable_cores
from seqrecord.store.reading.metadata import DamagedFile
from seqrecord.store.reading.resizing import Sizes
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.text import counted, first_of
from seqrecord.store.units import Progress
from seqrecord.store.writing.destination import Destination, WriteMode, check_mode
from seqrecord.store.writing.rates import irregular_notes
from seqrecord.store.writing.record_files import file_bytes_on
from seqrecord.store.writing.stored_schema import (
    Codecs,
    check_codecs,
    check_fps,
    check_sizes,
)

_logger = logging.getLogger("seqrecord")

_SHOWN_EPISODES = 5


@dataclass(frozen=True)
class ConvertReport:
    """Result of a conversion, with keys of episodes.

    `written` are new, `skipped` existed before, and `bad` could not be packed. `inventory` is the
    source's account of its original. `damaged` are record files of which a resume could not recover
    everything; they are not deleted.
    """

    manifest: Manifest
    written: tuple[str, ...]
    skipped: tuple[str, ...]
    bad: tuple[BadEpisode, ...]
    inventory: Inventory
    damaged: tuple[DamagedFile, ...] = ()


def convert(
    source: Source,
    destination: StorageLike,
    *,
    codecs: Codecs | None = None,
    kinds: Mapping[str, str | None] | None = None,
    units: Mapping[str, str | None] | None = None,
    fps: float | None = None,
    mode: WriteMode = "create",
    workers: int | None = None,
    executor: Executor | Workers | str | None = None,
    skip_bad_episodes: bool = False,
    strict: bool = False,
    chunk_frames: int | None = None,
    max_file_size: int | str | None = None,
    statistics: bool = True,
    in_place: bool = False,
    checksums: bool = False,
    check_video: bool = False,
    split_at_gaps: float | None = None,
    resize: Sizes | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Pack all episodes of a source into a dataset.

    The dataset exists when `convert` returns. After an error or a kill, `mode="resume"` continues
    after the episodes that had ended. A kill loses the episodes of unfinished record files on
    object stores, and everywhere if all chunks are copied; the resume writes them again.

    Jobs of about one record file run on `workers`, each into record files of its own. The order of
    episodes is the source's, independent of `workers`. Memory: one chunk of frames per worker.

    If the source is a dataset, splits are kept, and also codecs and groups, unless `codecs` or the
    existing dataset under `mode="append"` replaces them. Chunks are copied without decoding if all
    their codecs are the same. `chunk_frames` turns that off, except for video and single encoded
    images. Statistics of copied features are kept.

    Args:
        source: the original, for example from `seqrecord.open_source(path)`.
        destination: local path, URL or open storage of the dataset.
        codecs: as for `SeqRecordWriter`.
        kinds: kinds by feature, instead of the source's: `{"seg": "segmentation"}`.
        units: units by feature, instead of the source's: `{"depth": "mm"}`.
        fps: frames per second of episodes whose rate the source lacks. Ignored, with a warning, if
            timestamps contradict it, also those of a feature that is not selected.
        mode: as for `SeqRecordWriter`; `append` and `resume` skip existing episodes.
        workers: number of processes, by default one per core; 1 runs in this process. Processes are
            spawned, so a script must call `convert` below `if __name__ == "__main__":`, or
            `DestinationError` is raised.
        executor: runs the jobs instead: an executor, or the address `dask://HOST:PORT` or
            `ray://HOST:PORT` (Ray's client server) of a cluster that shares source and destination.
            Then `progress` advances by whole jobs. With an executor, an interrupt waits for running
            jobs. `workers` is then only the number of parallel jobs, by default the cluster's.
        skip_bad_episodes: leave out and report episodes that raise `SourceError` or cannot be
            stored. Other errors of a reader count as `SourceError`; more than ten episodes with
            one type of them raise it at the end, because the reader may be wrong.
        strict: raise `SourceError` if the original has data that the source does not pack, and for
            video that would be encoded again with loss; see `Inventory`.
        chunk_frames: as for `SeqRecordWriter`.
        max_file_size: as for `SeqRecordWriter`.
        statistics: as for `SeqRecordWriter`.
        storage_options: as for `SeqRecordWriter`.
        in_place: keep packets of video, images and arrays in the original files, and store
            references. Other features are copied. The originals must remain, and other users must
            pass their place to `seqrecord.open(originals=…)`. A kill loses unfinished record files,
            except with `checksums`.
        check_video: decode all video whose packets are kept or referenced; an episode with a frame
            that cannot be decoded is bad. By default the first frame of each file is decoded, with
            `in_place` of one file of each kind of stream, and damage inside later packets is found
            when they are read.
        checksums: with `in_place`, read all referenced data and store checksums, which also detect
            changes that preserve a file's size and time.
        split_at_gaps: seconds. An episode whose timestamps differ by more from one frame to the
            next becomes several episodes, `KEY/0`, `KEY/1` and so on, with its metadata, split and
            fps. Reads all timestamps first, selected or not. Not with `in_place`, and not for
            packed datasets.
        resize: height and width in pixels, `{"camera": (224, 224)}` by feature, or `(224, 224)` for
            all images: frames are resized before they are stored, as by `resize=` of the loaders.
            Encoded images and video are decoded for it, and stored by `codecs`, not as they were.
            The metadata `camera` follows. Not with `in_place`.
        progress: called from this thread, several times per second.

    Raises `SchemaError` for an unknown kind or unit, for a feature that the source lacks, and for
    `split_at_gaps` without timestamps, `ClipError` for a `resize` that does not fit the features,
    `SourceError` for a broken original, `DestinationError` for a destination that does not fit
    `mode`, and `ConflictError` if another writer committed meanwhile; the episodes are then kept
    there for `mode="resume"`.

    Example:
        source = seqrecord.open_source("records/")
        report = seqrecord.convert(source, "small-records/", codecs="small", workers=1)
        print(len(report.written), "episodes written")
    """
    check_mode(mode)
    fps = check_fps(fps)
    max_bytes = check_sizes(chunk_frames, max_file_size)
    check_codecs(codecs)
    if workers is not None and workers < 1:
        raise DestinationError("invalid number of workers", expected="1 or more", got=workers)
    _check_source(source)
    original = DescribedSource.read(source, kinds, units, in_place=in_place)
    original = original.resized(resize)
    original = original.split_at_gaps(split_at_gaps, skip_bad=skip_bad_episodes)
    if strict:
        original.refuse_left_out()
    original = original.checked(skip_bad=skip_bad_episodes).with_fps(fps)
    with open_workers(executor) as runner:
        processes = workers or (runner and runner.count) or usable_cores()
        replaced: Collection[str] = getattr(source, "replaced", ())
        target = Destination(open_storage(destination, storage_options), mode, replaced)
        try:
            packing = Packing.of(original, target, codecs, chunk_frames)
            dictionaries = _dictionaries(packing.source, target, max_file_size)
            todo = _pending(target, original.episodes)
            total_frames = sum(info.num_frames for _, info in todo)
            share = total_frames * packing.frame_cost // (2 * processes)
            file_bytes = file_bytes_on(target.storage, max_bytes)
            job_bytes = min(file_bytes, max(share, (runner or Workers).min_job_bytes))
            jobs = [
                Job(
                    source=packing.source,
                    storage=target.storage,
                    schema=packing.schema,
                    writer=target.writer,
                    episodes=part,
                    chunk_frames=chunk_frames,
                    max_file_size=file_bytes,
                    skip_bad_episodes=skip_bad_episodes,
                    statistics=statistics,
                    externals=packing.externals,
                    resizing=original.resizing,
                    checksums=checksums,
                    check_video=check_video,
                    strict=strict,
                )
                for part in cut_in_jobs(todo, packing.frame_cost, job_bytes)
            ]
            meter = Meter(total_frames, packing.schema.frame_nbytes, progress)
            results = run_jobs(jobs, processes=processes, workers=runner, meter=meter)
            result = JobResult.joined(results)
            return _report(target, original, packing, todo, result, dictionaries)
        except BaseException as error:
            target.give_up(error)
            raise
        finally:
            target.release()


def _check_source(source: object) -> None:
    """Raise `SourceError` for an object without the methods of a source."""
    methods = ("schema", "episodes", "frames")
    if not all(callable(getattr(source, name, None)) for name in methods):
        hint = ""
        if isinstance(source, str | PathLike):
            hint = "; seqrecord.open_source(path) finds the source of a path"
        raise SourceError(
            f"not a source{hint}",
            expected=f"an object with the methods {', '.join(methods)}",
            got=type(source).__name__,
        )


def _check_values(index: Index, *, requested: Collection[str], shown: str) -> None:
    """Raise `SourceError` if a requested feature has no value in any frame; warn about others."""
    for name, spec in index.schema.active.items():
        group = index.groups[spec.group]
        gaps = group.gaps[group.gaps["feature"] == index.schema.position(name)]
        if num_absent(gaps, group.num_frames).sum() < index.num_frames.sum():
            continue
        if name in requested:
            raise SourceError(
                "requested feature has no value in any frame; nothing was committed. Leave it "
                "out of features (--features), and pack into another folder",
                file=shown,
                feature=name,
                expected="a value in at least one frame",
                got=f"none in {int(index.num_frames.sum()):,} frames",
            )
        _logger.warning("%s: feature %s has no value in any frame", shown, name)


def _pending(target: Destination, episodes: Sequence[EpisodeInfo]) -> list[tuple[int, EpisodeInfo]]:
    """The episodes to write, with their ordinals. Logs existing ones with another length."""
    if changed := target.other_lengths({info.key: info.num_frames for info in episodes}):
        _logger.warning(
            "%s: skipped %s with another number of frames in the source: %s; to replace them, "
            "delete them first (`seqrecord edit delete`)",
            *(target.storage.url, counted(len(changed), "existing episode")),
            first_of([*changed], _SHOWN_EPISODES),
        )
    new_episodes = [info for info in episodes if info.key not in target.committed]
    ordinals = {info.key: target.first_ordinal + i for i, info in enumerate(new_episodes)}
    todo = [info for info in new_episodes if info.key not in target.finished]
    if all(ordinals.get(key) == ordinal for key, ordinal in target.recovered.items()):
        return [(ordinals[info.key], info) for info in todo]
    # The interrupted write listed other episodes: recovered episodes keep their ordinals, and
    # new episodes follow.
    return list(enumerate(todo, target.next_ordinal))


def _report(
    target: Destination,
    original: DescribedSource,
    packing: Packing,
    todo: Sequence[tuple[int, EpisodeInfo]],
    result: JobResult,
    dictionaries: Sequence[Dictionary],
) -> ConvertReport:
    """Commit and make the report."""
    order = {info.key: position for position, (_, info) in enumerate(todo)}
    bad = sorted(result.bad, key=lambda episode: order[episode.key])
    check_unexpected(episode.cause for episode in bad)
    bad_keys = {episode.key for episode in bad}
    written = tuple(key for key in order if key not in bad_keys)
    if not written and not target.finished:
        first_error = bad[0].cause
        raise SourceError(
            f"no episode can be read; the first error: {first_error.message}",
            **{"episode": bad[0].key, **first_error.context()},
        )
    statistics, bad_episodes = result.statistics, (*original.bad, *bad)
    episodes, stored_statistics, schema = original.episodes, packing.statistics, packing.schema
    if (
        stored_statistics
        and statistics is not None
        and len(written) == len(episodes)
        and not original.bad
    ):
        # Features that stayed encoded have no new statistics.
        statistics = Statistics(stored_statistics.num_frames, {**stored_statistics, **statistics})
    inventory = packing.inventory.extended(left_out=_left_out(bad_episodes, target.storage.url))
    videos, num_resumed = (result.changes, result.codecs, schema), len(target.finished)
    inventory = with_videos(inventory, *videos, num_resumed=num_resumed)
    warnings = irregular_notes(result.irregular)
    warnings += () if statistics is None else statistics.non_finite_notes()
    for note in warnings:
        _logger.warning("%s: %s", target.storage.url, note)
    inventory = inventory.extended(notes=warnings)
    source, url = packing.source, target.storage.url
    return ConvertReport(
        manifest=target.commit(
            {*target.finished, *written},
            statistics,
            original.splits,
            [inventory] if packing.inventories is None else packing.inventories,
            check=partial(_check_values, requested=requested_features(source), shown=url),
            copied=packing.copied,
            dictionaries=dictionaries,
        ),
        written=written,
        skipped=tuple(info.key for info in episodes if info.key not in order),
        bad=bad_episodes,
        inventory=inventory,
        damaged=tuple(target.damaged),
    )


def _dictionaries(
    source: Source, target: Destination, max_file_size: int | str | None
) -> Sequence[Dictionary]:
    """Values of texts that the source brings along; those of datasets are copied first."""
    if (copy := getattr(source, "copy_texts", None)) is None:
        dictionaries: Sequence[Dictionary] = getattr(source, "dictionaries", ())
        return dictionaries
    settings: dict[str, Any] = {"mode": "resume", "workers": 1, "statistics": False}
    copied: Sequence[Dictionary] = copy(
        target.storage, partial(convert, max_file_size=max_file_size, **settings)
    )
    return copied


def _left_out(bad: Sequence[BadEpisode], url: str) -> Iterator[LeftOut]:
    """Rows of the inventory for bad episodes. Logs those with video of another size."""
    other_size_episodes = [episode for episode in bad if episode.is_other_size]
    broken_episodes = [episode for episode in bad if not episode.is_other_size]
    if broken_episodes:
        yield LeftOut("bad episodes", len(broken_episodes), "skip_bad_episodes", "episodes", False)
    for episode in broken_episodes[:_SHOWN_EPISODES]:
        yield LeftOut(f"episode {episode.key}", 1, episode.error, "episodes", False)
    if other_size_episodes:
        yield LeftOut("episodes", len(other_size_episodes), "video of another size", "episodes")
        _logger.warning(
            "%s: left out %s with video of another size; the first: %s",
            *(url, counted(len(other_size_episodes), "episode"), other_size_episodes[0].error),
        )
