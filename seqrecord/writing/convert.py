"""convert: packs a source into a dataset, on many processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, cast

from seqrecord.errors import (
    ClipError,
    DestinationError,
    FormatError,
    SchemaError,
    SourceError,
)
from seqrecord.feature_kinds import check_kinds_and_units
from seqrecord.format.index import Index
from seqrecord.format.inventory import Inventory, LeftOut
from seqrecord.format.manifest import CopiedFiles, Manifest
from seqrecord.format.references import (
    ExternalFile,
)
from seqrecord.format.rows import num_absent
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.processes.machine import usable_cores
from seqrecord.reading.metadata import DamagedFile
from seqrecord.schema import Schema
from seqrecord.sources import EpisodeInfo, Source
from seqrecord.sources.base import StoredSource
from seqrecord.sources.common.file_types import explained
from seqrecord.sources.inventory import inventory_of
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import StorageLike, open_storage
from seqrecord.writing.convert_jobs import (
    BadEpisode,
    Job,
    Meter,
    Progress,
    Written,
    cut_in_jobs,
    frame_work,
    given_workers,
    run_jobs,
)
from seqrecord.writing.destination import Destination, WriteMode, check_mode
from seqrecord.writing.edit_files import check_split_name
from seqrecord.writing.external_lists import put_copied, put_lists
from seqrecord.writing.rates import irregular_note
from seqrecord.writing.stored_schema import (
    DEFAULT_MAX_FILE_SIZE,
    Codecs,
    Described,
    check_codecs,
    check_fps,
    check_passthrough,
    check_sizes,
    stored_schema,
)
from seqrecord.writing.stored_statistics import merged

_logger = logging.getLogger("seqrecord")

_MIN_JOB_BYTES = 128 << 20  # decoded; less is not worth a process


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion. Episodes that were there before are `skipped`; `inventory` is the
    source's account of its original; `damaged` are record files of which a resume could not recover
    all, and which stay."""

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
    executor: Executor | str | None = None,
    skip_bad_episodes: bool = False,
    strict: bool = False,
    chunk_frames: int | None = None,
    max_file_size: int | str = DEFAULT_MAX_FILE_SIZE,
    statistics: bool = True,
    in_place: bool = False,
    checksums: bool = False,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Pack all episodes of a source.

    A source that is a dataset keeps its codecs and groups, unless `codecs` or the dataset that is
    appended to says otherwise. Chunks of features that are stored in the same codecs are copied
    without decoding, unless `chunk_frames` is given; then still chunks of video, and kept images
    one by one. Splits are kept, and the statistics of features that are not decoded.

    Episodes are written in jobs of about a record file, each job by one worker into record
    files of its own; a worker holds one chunk of frames. The order of episodes is the source's,
    whatever the number of workers. The dataset exists when `convert` returns; stopped earlier, by
    an error or a kill, `mode="resume"` continues after the episodes that had ended; where only
    chunks are copied, a kill loses the episodes of unfinished record files. Arguments
    that are not listed here are those of `SeqRecordWriter`.

    Args:
        source: where the episodes come from.
        kinds, units: kinds and units by feature, instead of those of the source:
            `kinds={"seg": "segmentation"}`, `units={"depth": "mm"}`.
        fps: frames a second of the episodes of which the source does not know it.
        mode: as for `SeqRecordWriter`; `append` and `resume` skip episodes that are there already.
        workers: processes; by default one for each core, 1 stays in this process. The processes
            are spawned, so a script calls this below `if __name__ == "__main__":`; else
            `DestinationError` says so.
        executor: runs the jobs instead: the address of a cluster that shares source and
            destination, `dask://HOST:PORT` or `ray://HOST:PORT` (Ray's client server), or any
            executor; with one, `progress` moves by whole jobs, and an interrupt waits for those
            that run. `workers` is then only how many there are; by default those of the cluster.
        skip_bad_episodes: leave out episodes that raise `SourceError`, or that cannot be stored as
            they are listed, and report them.
        strict: raise `SourceError` if the original has possible data that the source does not pack,
            see `Inventory`.
        in_place: leave packets of video, images and arrays where they are, and only say where
            that is: nothing but other features is copied, and the originals must stay. You alone
            can read the dataset then, or who says where the originals lie; see `seqrecord.open`.
            A kill loses what is not in a finished record file, unless with `checksums`.
        checksums: with `in_place`, read what is referred to, and keep its checksums: then a change
            is noticed that leaves a file's size and time as they were.
        progress: called from this thread, several times a second.

    Raises `SchemaError` for a kind or a unit of a feature that the source does not have, and for
    one that does not exist. Raises `SourceError` for a broken original, `DestinationError` for a
    destination that `mode` does not fit, and `ConflictError` if another writer has committed
    meanwhile; then the episodes stay there for `mode="resume"`.
    """
    check_mode(mode)
    fps = check_fps(fps)
    file_bytes = check_sizes(chunk_frames, max_file_size)
    check_codecs(codecs)
    if workers is not None and workers < 1:
        raise DestinationError("not a number of workers", expected="1 or more", got=workers)
    _check_source(source)
    if in_place:
        if not hasattr(source, "referring"):
            raise SourceError("originals of this kind cannot be read in place; convert them")
        source = source.referring()
    with explained():
        schema = source.schema()
        episodes = source.episodes()
        inventory = inventory_of(source)
    described: Mapping[str, Any] = check_kinds_and_units(schema, kinds, units)
    features = (replace(each, **described.get(each.name, {})) for each in inventory.features)
    notes = (note for note in inventory.notes if not _is_answered(note, described))
    inventory = replace(inventory, features=tuple(features), notes=tuple(notes))
    if strict and inventory.left_out_data:
        _refuse(inventory)
    episodes, unlisted = _checked(episodes, skip_bad_episodes)
    if fps is not None:
        episodes = [info if info.fps else replace(info, fps=fps) for info in episodes]
    with given_workers(executor) as runner:
        processes = workers or (runner and runner.count) or usable_cores()
        target = Destination(open_storage(destination, storage_options), mode)
        try:
            known: Statistics | None = None
            original = schema
            inventories: Sequence[Inventory] | None = None
            copied: CopiedFiles | None = None
            if hasattr(source, "stored"):
                dataset = cast("StoredSource", source)
                known, inventories = dataset.statistics, dataset.inventories
                schema = _schema_of(dataset.stored, schema, codecs, target.schema, described)
                source = dataset = dataset.fitted(schema, chunk_frames)
                work = frame_work(source.schema(), copied=dataset.copied_features)
                copied = dataset.copy_lists(target.storage)
            else:
                work = frame_work(schema, in_place=in_place)
                kept, schema = schema, stored_schema(schema, codecs, target.schema, described)
                check_passthrough(kept, schema)
            for note in _unknown_units(original, described, target.schema):
                _logger.warning("%s: %s", target.storage.url, note)
                inventory = replace(inventory, notes=(*inventory.notes, note))
            externals: dict[str, tuple[str, int]] = {}
            if in_place:
                files: dict[str, ExternalFile] = cast("Any", source).external_files()
                externals = put_lists(target.storage, files)
                copied = put_copied(target, source)
            todo = _todo(target, episodes)
            total_frames = sum(info.num_frames for _, info in todo)
            share = total_frames * work // (2 * processes)
            job_bytes = min(file_bytes, max(share, _MIN_JOB_BYTES))
            jobs = [
                Job(
                    source=source,
                    storage=target.storage,
                    schema=schema,
                    writer=target.writer,
                    episodes=part,
                    chunk_frames=chunk_frames,
                    max_file_size=file_bytes,
                    skip_bad_episodes=skip_bad_episodes,
                    statistics=statistics,
                    externals=externals,
                    checksums=checksums,
                )
                for part in cut_in_jobs(todo, work, job_bytes)
            ]
            meter = Meter(total_frames, schema.frame_nbytes, progress)
            written = run_jobs(jobs, processes=processes, workers=runner, meter=meter)
            chosen = getattr(source, "features", None)  # of a user's own source it may be anything
            requested = chosen if isinstance(chosen, list | tuple) else ()
            check = partial(_check_values, requested=requested, shown=target.storage.url)
            commit = partial(target.commit, check=check, copied=copied)
            return _report(
                *(target, episodes, todo, written, unlisted, known, inventory, commit),
                inventories=inventories,
            )
        except BaseException as error:
            target.give_up(error)
            raise
        finally:
            target.release()


def _unknown_units(
    original: Schema, described: Mapping[str, Any], there: Schema | None
) -> Iterator[str]:
    """Lines about units that the source or the dataset that is appended to does not know."""
    for name, known in there.active.items() if there is not None else ():
        unit = described.get(name, {}).get("unit", original[name].unit)
        if (unit is None) != (known.unit is None):
            yield (
                f"feature {name}: unit {unit or 'unknown'} in the source, "
                f"{known.unit or 'unknown'} in the dataset, which keeps that"
            )


def _is_answered(note: str, described: Mapping[str, Any]) -> bool:
    """Whether a note asks for, or assumes, a unit that the caller gives."""
    return any(
        (note.startswith(f"feature {name}: ") and "without a unit" in note)
        or note.startswith(f"unit of {name} assumed")
        for name, given in described.items()
        if given.get("unit") is not None
    )


def _refuse(inventory: Inventory) -> None:
    """Raises `SourceError` for the data that was left out."""
    left_out = inventory.left_out_data
    shown = "; ".join(map(str, left_out[:5])) + ("; …" if len(left_out) > 5 else "")
    raise SourceError(
        f"the original, of the format {inventory.format}, has data that is not packed; move it out "
        "of the original, choose features (--features), or leave out strict (--strict)",
        expected="every file and field packed",
        got=shown,
    )


def _check_source(source: object) -> None:
    """`SourceError` for an object without the methods of a source."""
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
    """`SourceError` for a requested feature that no frame has; a warning for any other."""
    for name, spec in index.schema.active.items():
        group = index.groups[spec.group]
        gaps = group.gaps[group.gaps["feature"] == index.schema.position(name)]
        if num_absent(gaps, group.num_frames).sum() < index.num_frames.sum():
            continue
        if name in requested:
            raise SourceError(
                "a requested feature has no value in any frame; nothing was committed. Leave it "
                "out of features (--features), and pack into another folder",
                file=shown,
                feature=name,
                expected="a value in one frame or more",
                got=f"none in {int(index.num_frames.sum()):,} frames",
            )
        _logger.warning("%s: feature %s has no value in any frame", shown, name)


def _schema_of(
    dataset: Schema,
    schema: Schema,
    codecs: Codecs | None,
    there: Schema | None,
    described: Described,
) -> Schema:
    """The schema to write under for a source of this `schema` that is a dataset, with `dataset` as
    its stored features: its own codecs by default, and then its groups."""
    if there is not None or isinstance(codecs, str):
        return stored_schema(schema, codecs, there, described)
    own = {name: spec.codec for name, spec in dataset.items()}
    if codecs is not None:
        return stored_schema(schema, {**own, **codecs}, None, described)
    groups = {
        name: {**described.get(name, {}), "group": spec.group} for name, spec in dataset.items()
    }
    return stored_schema(schema, own, None, groups)


def _todo(target: Destination, episodes: Sequence[EpisodeInfo]) -> list[tuple[int, EpisodeInfo]]:
    """The episodes to write, with their ordinals."""
    new = [info for info in episodes if info.key not in target.committed]
    ordinals = {info.key: target.first_ordinal + i for i, info in enumerate(new)}
    todo = [info for info in new if info.key not in target.finished]
    if all(ordinals.get(key) == ordinal for key, ordinal in target.recovered.items()):
        return [(ordinals[info.key], info) for info in todo]
    # The source, or another one, listed other episodes when the write was interrupted: what had
    # been finished stays where it is, and the others follow.
    return list(enumerate(todo, target.next_ordinal))


def _checked(
    episodes: Sequence[EpisodeInfo], skip_bad: bool
) -> tuple[list[EpisodeInfo], list[BadEpisode]]:
    """The episodes that can be packed as they are listed, and those that `skip_bad` leaves out."""
    if not episodes:
        raise SourceError("the source has no episodes")
    seen: set[str] = set()
    good: list[EpisodeInfo] = []
    bad: list[BadEpisode] = []
    for info in episodes:
        try:
            check_key(info.key)
            encode_metadata(dict(info.metadata))
            check_fps(info.fps)
            if info.split is not None:
                check_split_name(info.split)
        except (FormatError, SchemaError, ClipError) as error:
            refused = SourceError(error.message, **{"episode": info.key, **error.context()})
            if not skip_bad:
                raise refused from error
            bad.append(BadEpisode(info.key, str(refused)))
            continue
        if info.key in seen:
            raise SourceError("two episodes of one key", episode=info.key)
        seen.add(info.key)
        good.append(info)
    if not good:
        raise SourceError(f"no episode can be packed; the first because of this: {bad[0].error}")
    return good, bad


def _report(
    target: Destination,
    episodes: Sequence[EpisodeInfo],
    todo: Sequence[tuple[int, EpisodeInfo]],
    jobs: Sequence[Written],
    unlisted: Sequence[BadEpisode],
    known: Statistics | None,
    inventory: Inventory,
    commit: Callable[..., Manifest],
    *,
    inventories: Sequence[Inventory] | None,
) -> ConvertReport:
    """Commits. `inventories` take the place of `inventory` in the dataset."""
    order = {info.key: position for position, (_, info) in enumerate(todo)}
    bad = [episode for job in jobs for episode in job.bad]
    left_out = {episode.key for episode in bad}
    bad.sort(key=lambda episode: order[episode.key])
    written = tuple(key for key in order if key not in left_out)
    if not written and not target.finished:
        raise DestinationError(
            f"no episode could be written; the first was left out because of this: {bad[0].error}",
            file=target.storage.url,
        )
    statistics = merged([job.statistics for job in jobs])
    if known and statistics is not None and len(written) == len(episodes) and not unlisted:
        # What was kept encoded was not looked at.
        statistics = Statistics(known.num_frames, {**known, **statistics})
    splits = {info.key: info.split for info in episodes if info.split is not None}
    if every := (*unlisted, *bad):
        skipped = LeftOut("bad episodes", len(every), "skip_bad_episodes", "episodes", False)
        inventory = replace(inventory, left_out=(*inventory.left_out, skipped))
    if irregular := [episode for job in jobs for episode in job.irregular]:
        note = irregular_note(irregular)
        _logger.warning("%s: %s", target.storage.url, note)
        inventory = replace(inventory, notes=(*inventory.notes, note))
    keys = {*target.finished, *written}
    return ConvertReport(
        manifest=commit(
            keys, statistics, splits, [inventory] if inventories is None else inventories
        ),
        written=written,
        skipped=tuple(info.key for info in episodes if info.key not in order),
        bad=every,
        inventory=inventory,
        damaged=tuple(target.damaged),
    )
