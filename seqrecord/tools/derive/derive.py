"""Values of a function over a dataset, computed once and stored as a dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import filterfalse
from os import PathLike
from typing import Any, cast

import torch.distributed as dist

from seqrecord.errors import ClipError, NotFoundError, SchemaError, SeqRecordError
from seqrecord.formats.converting.convert import ConvertReport, convert
from seqrecord.formats.converting.convert_jobs import Meter
from seqrecord.formats.converting.dictionary_copies import discard_texts, recover_texts
from seqrecord.loader.clips.sample_tables import column_names
from seqrecord.loader.clips.segments import Segments
from seqrecord.loader.frames.trials import check_signature
from seqrecord.loader.pipes.option_values import Budget
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.store.format.edits import Relabel
from seqrecord.store.format.manifest import Dictionary
from seqrecord.store.format.text import encode_metadata
from seqrecord.store.originals.protocol import Source
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.reading.derivations import DERIVED_FROM
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.reading.opening import opened
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.text import repr_of
from seqrecord.store.units import Progress, check, check_integer, check_names
from seqrecord.store.writing.destination import RESUME
from seqrecord.store.writing.stored_schema import Codecs
from seqrecord.tools.derive.column_update import ColumnUpdate, StoredResults
from seqrecord.tools.derive.derived_source import DerivedSource, DeriveFunction
from seqrecord.tools.derive.function_errors import raising_cause
from seqrecord.tools.derive.provenance import Derivation, Settings, is_per_frame
from seqrecord.tools.derive.ranks import RankWorkers, follow, lead, rank_group
from seqrecord.tools.derive.text_source import (
    TextFunction,
    TextSource,
    distinct_texts,
    stored_texts,
    text_sources,
    write_texts,
)
from seqrecord.tools.edit.changes import Change, EditedDataset, edit_dataset
from seqrecord.tools.edit.episodes import delete_episodes, rename_episodes, split_episodes

_FIXED: Mapping[str, Any] = {"shuffle": False, "last_batch": "keep", "rank": (0, 1)}
_USUAL: Mapping[str, Any] = {"order": "clips", "output": "torch", "rename": None}
"""Arguments that derive has with their defaults: rows of an episode are consecutive, and the
function gets tensors under the names of `features`."""

_NOT_COMPARED = frozenset(
    ("batch_size", "device", "ranks", "codecs", "max_file_size", "statistics", "progress")
)
"""Arguments of `derive` that decide no values."""


@raising_cause()
def derive(
    dataset: DatasetLike,
    function: DeriveFunction,
    destination: str | PathLike[str],
    *,
    features: Sequence[str],
    keep: Sequence[str] = (),
    batch_size: int = 1,
    version: str = "",
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    ranks: bool = True,
    per_text: Mapping[str, TextFunction] | None = None,
    codecs: Codecs | None = None,
    max_file_size: int | str | None = None,
    statistics: bool = True,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **clips: Any,
) -> ConvertReport:
    """Store the results of a function for each frame, or each sample, of a dataset.

    For frozen encoders, whose results are the same in every epoch: latents, embeddings, detections.
    The result is a dataset like any other. Without `samples`, `windows` and `clip_len` it has a
    frame for each frame of the source, and joins it: `seqrecord.open("records/",
    join=["latents/"])`. With one of them it has a frame for each sample, in the order of starts,
    under the key of the sample's episode, with the features `source_start`, int64, `source_frames`,
    int64 [T], which are the frames of the first input, and the columns of the table.

    Each frame is read and decoded once, however many samples it is in. Frames that lack an input,
    or a feature that is kept, have no values.

    The function runs in this process. After an error or a kill, the same call continues. If the
    source has changed, the same call computes the values of changed and new episodes only; see
    `check_derived`. A call with other features in `keep`, or other windows of these, replaces the
    features beside the results in one commit, and calls no function while its inputs are equal.

    Args:
        dataset: the source: location or dataset.
        function: gets a dict of the `features`: tensors [B, …], with samples [B, T, …], or lists of
            B texts. Returns a dict of values for B rows: tensors or arrays [B, …], or lists of B
            texts or of B arrays whose first axis differs.
        destination: local path or URL of the new dataset.
        features: inputs of the function.
        keep: features that are copied. With samples, in their windows; without a window, the value
            of the frame `start`. Columns that describe them in batches are stored too, under their
            names: `<feature>_is_pad`, bool [T], `<feature>_dim_is_pad`, bool [D], `<feature>_age`
            or `<feature>_wait`, int64 [T], of padded shapes `<feature>_mask`, and `frames_is_pad`,
            bool [T], of lists with `ragged="pad"`.
        batch_size: rows of a call, B; the last call may have fewer.
        version: of the function or its weights. A dataset of another version is refused: derive
            into another folder.
        arguments: keyword arguments of the function, JSON values; compared as the version is.
        device: of the tensors; default: the CPU.
        ranks: divide the episodes among all ranks of torch.distributed, which must all call this,
            each with its device. Ranks read the source and write the destination.
        per_text: functions by text feature, `{"task": encode}`, each called once for each distinct
            text of the episodes. It gets the text, and returns an array [D], or [L, …] whose first
            axis may differ. The values are stored once per text, and come in batches as
            `task_embedding` where `task` comes; see `Dataset.dictionaries`. Of the same `version`
            as the function.
        codecs: as for `convert`.
        max_file_size: as for `convert`.
        statistics: as for `convert`.
        storage_options: as for `convert`.
        progress: as for `convert`.
        clips: arguments of `SeqRecordPipe` that choose and prepare clips: `samples`, `windows`,
            `clip_len`, `stride`, `episodes`, `split`, `pad`, `resize`, `frame_cache`,
            `memory_limit` and others. `order`, `output` and `rename` have their defaults. Samples
            that change from epoch to epoch are refused.

    Raises `ClipError` for results that are not one value per row and names of batches' columns;
    `ConflictError` if another writer commits meanwhile; and the errors of `convert`. Errors of the
    functions are raised as they are, with the episode and frame, or the text, as a note; with
    several ranks, as `ClipError` with their text.

    Example:
        def brightness(batch):
            return {"brightness": batch["image"].float().mean(dim=(1, 2, 3))}

        seqrecord.derive("records/", brightness, "brightness/", features=["image"], batch_size=8)
        dataset = seqrecord.open("records/", join=["brightness/"])
    """
    check("function", function, callable(function), "a function of a batch")
    settings = Settings.of(function, version, arguments, keep, clips)
    options, single = _options(features, keep, batch_size, device, clips)
    called = partial(function, **arguments) if arguments else function
    check_signature("the function of derive", called, "batch")
    of_texts = text_sources(per_text, version)
    place = _Place(destination, storage_options)
    with opened(dataset) as source_dataset:
        source = DerivedSource(
            *(source_dataset, function, [*features], [*keep], options, single, settings),
            reserved_names={texts.dictionary.name for texts in of_texts},
        )
        group = rank_group() if ranks else None
        sources: list[Source] = [source, *of_texts]
        runners: list[RankWorkers | None] = [None] * len(sources)
        if group is not None:
            if dist.get_rank(group):
                try:
                    return cast(ConvertReport, follow(group, sources))
                finally:
                    source.close()
            frames = sum(info.num_frames for info in source.episodes())
            meters = [Meter(frames, 0, progress), *(Meter(0, 0, None) for _ in of_texts)]
            runners = [RankWorkers(group, sources, n, meter) for n, meter in enumerate(meters)]
            progress = None
        runner = runners[0]

        def write_values_of_texts() -> None:
            dictionaries = list[Dictionary]()
            for texts, text_runner in zip(of_texts, runners[1:], strict=True):
                if _choose_texts(source, texts, place):
                    dictionaries.append(texts.dictionary)
                if texts.texts:
                    with place.folder(texts.dictionary.folder) as storage:
                        write_texts(texts, storage, text_runner, codecs, max_file_size)
            # A dataset that names an empty dictionary could not be read.
            source.dictionaries = dictionaries

        def write() -> ConvertReport:
            with _naming_remedy():
                _check_destination(source, place)
                write_values_of_texts()
            _update_labels(source, place)
            _update_columns(source, place, codecs, max_file_size)
            _update(source, place)
            with _naming_remedy():
                return convert(
                    source,
                    destination,
                    codecs=_codecs_of_frames(codecs, source),
                    mode="resume",
                    workers=1 if runner is None else None,
                    executor=runner,
                    max_file_size=max_file_size,
                    statistics=statistics,
                    progress=progress,
                    storage_options=storage_options,
                )

        def write_all() -> ConvertReport:
            report = write()
            # A resume recovers the episodes of an interrupted call, before which the source may
            # have been another one.
            if not _compare(source, destination, storage_options).is_current:
                report = write()
            return report

        try:
            return write_all() if group is None else lead(group, write_all)
        finally:
            source.close()


@contextmanager
def _naming_remedy() -> Iterator[None]:
    """Name this function in errors of `convert` that recommend a resume or refuse features."""
    try:
        yield
    except SchemaError as error:  # for example of an interrupted call that kept others
        error.message += "; if the destination has other features, derive into another folder"
        raise
    except SeqRecordError as error:
        error.message = error.message.replace(RESUME, "call derive again, which continues")
        raise


@raising_cause()
def check_derived(
    dataset: DatasetLike,
    function: DeriveFunction,
    destination: str | PathLike[str],
    *,
    features: Sequence[str],
    keep: Sequence[str] = (),
    version: str = "",
    arguments: Mapping[str, Any] | None = None,
    per_text: Mapping[str, TextFunction] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **clips: Any,
) -> Derivation:
    """Compare a derived dataset with its source, without calling the function.

    Takes the arguments of `derive`. `batch_size` and others that decide no values have no effect.
    Raises `NotFoundError` if there is no dataset.

    Example:
        def brightness(batch):
            return {"brightness": batch["image"].float().mean(dim=(1, 2, 3))}

        seqrecord.derive("records/", brightness, "light/", features=["image"])
        print(seqrecord.check_derived("records/", brightness, "light/", features=["image"]))
    """
    clips = {name: value for name, value in clips.items() if name not in _NOT_COMPARED}
    settings = Settings.of(function, version, arguments, keep, clips)
    options, single = _options(features, keep, 1, None, clips)
    with opened(dataset) as source_dataset:
        source = DerivedSource(
            source_dataset, function, [*features], [*keep], options, single, settings
        )
        place = _Place(destination, storage_options)
        state = _compare(source, destination, storage_options)
        lacking = {
            texts.dictionary.name: _lacking_texts(source, texts, place)
            for texts in text_sources(per_text, version)
        }
        return replace(state, new_texts={name: texts for name, texts in lacking.items() if texts})


@dataclass(frozen=True)
class _Place:
    """Where a derived dataset is."""

    destination: str | PathLike[str]
    storage_options: Mapping[str, Any] | None

    @contextmanager
    def folder(self, path: str) -> Iterator[Storage]:
        """Provide the storage of a folder."""
        with closing(open_storage(self.destination, self.storage_options)) as storage:
            yield in_folder(storage, path)

    def uses(self, dictionary: str) -> bool:
        """Whether there is a dataset, and it has a dictionary of this name."""
        target = _existing(self.destination, self.storage_options)
        if target is None:
            return False
        with target:
            return dictionary in (entry.name for entry in target.contents.manifest.dictionaries)


def _check_destination(source: DerivedSource, place: _Place) -> None:
    """Raise `ClipError` for a dataset of others, or with values of texts that would be missing."""
    target = _existing(place.destination, place.storage_options)
    if target is None:
        return
    with target:
        _entries(target)
        for dictionary in target.contents.manifest.dictionaries:
            if dictionary.name not in source.reserved_names:
                raise ClipError(
                    "the derived dataset has values of texts, which new texts would lack",
                    file=target.url,
                    feature=dictionary.name,
                    expected=f"per_text={{{dictionary.text!r}: …}}, with the function that made "
                    "them",
                    got=f"per_text without {dictionary.text}",
                )


def _lacking_texts(source: DerivedSource, texts: TextSource, place: _Place) -> list[str]:
    """Return the texts of the source's episodes that have no value."""
    is_used = place.uses(texts.dictionary.name)
    with place.folder(texts.dictionary.folder) as storage:
        stored = stored_texts(texts, storage, is_used=is_used)
    distinct = distinct_texts(source.dataset, texts.dictionary.text, source.numbers)
    return [text for text in distinct if text not in stored.texts]


def _choose_texts(source: DerivedSource, texts: TextSource, place: _Place) -> bool:
    """Choose the texts that get values now: all without a value.

    If an interrupted call left values of another function, version or shape, and no dataset uses
    them yet, they are removed, and all texts are chosen. Returns whether there will be any value.
    """
    is_used = place.uses(texts.dictionary.name)
    distinct = distinct_texts(source.dataset, texts.dictionary.text, source.numbers)
    with place.folder(texts.dictionary.folder) as storage:
        recover_texts(storage)
        stored = stored_texts(texts, storage, is_used=is_used)
        texts.texts = [text for text in distinct if text not in stored.texts]
        is_fit = not texts.texts or stored.fits(spec := texts.spec())
        if is_used and not is_fit and stored.spec is not None:
            raise texts.misfit(texts.texts[0], stored.spec, spec)
        if not is_used and not (is_fit and stored.texts):
            discard_texts(storage)
            texts.texts = distinct
    return is_used or bool(distinct)


def _codecs_of_frames(codecs: Codecs | None, source: DerivedSource) -> Codecs | None:
    """Return the codecs of features that are no dictionaries."""
    if not isinstance(codecs, Mapping):
        return codecs
    return {name: codec for name, codec in codecs.items() if name not in source.reserved_names}


def _options(
    features: Sequence[str],
    keep: Sequence[str],
    batch_size: int,
    device: str | None,
    clips: Mapping[str, Any],
) -> tuple[LoaderOptions, list[str]]:
    """Return the options of the loader for all inputs, and the features of a single frame."""
    if isinstance(features, str) or not features:
        raise ClipError("features are not names", expected="a list of names", got=repr_of(features))
    check_names("keep", keep)
    if twice := sorted({*features} & {*keep}):
        raise ClipError("a feature is an input and kept", feature=twice[0], expected="one of both")
    known = {f.name for f in fields(LoaderOptions)} - _FIXED.keys()
    for name in filterfalse(known.__contains__, clips):
        expected = "an argument of SeqRecordPipe that chooses or prepares clips: " + ", ".join(
            sorted(known - _USUAL.keys())
        )
        raise ClipError(f"derive has no argument {name}", expected=expected, got=name)
    if not isinstance(batch_size, Budget):
        batch_size = check_integer("batch_size", batch_size, least=1)
    per_frame = is_per_frame(clips)
    names = [*features, *keep]
    windows, single = clips.get("windows") or {}, list[str]()
    if per_frame:
        single = names
    elif not _has_frames(clips.get("samples")):
        has_length = clips.get("clip_len") is not None
        single = [n for n in names if n not in windows and not (has_length and n in features)]
    chosen = {**clips, "windows": {**dict.fromkeys(single, (0,)), **windows} or None}
    if device is not None:
        chosen["device"] = device
    options = LoaderOptions(features=names, batch_size=batch_size, **_FIXED, **chosen)
    for name, usual in _USUAL.items():
        if (value := getattr(options, name) or None) != usual:
            expected = f"no {name}" if usual is None else f"{name}={usual!r}"
            got = f"{name}={repr_of(value)}"
            raise ClipError(f"derive cannot use this {name}", expected=expected, got=got)
    return options, single


def _has_frames(samples: Any) -> bool:
    """Whether samples are lists of frames."""
    table = samples[0] if isinstance(samples, list) and samples else samples
    if table is None or callable(table) or isinstance(table, Segments):
        return False
    return "frames" in column_names(table)


def _existing(
    destination: str | PathLike[str], storage_options: Mapping[str, Any] | None
) -> Dataset | None:
    try:
        return open_dataset(destination, storage_options=storage_options)
    except NotFoundError:
        return None


@dataclass(frozen=True)
class _Comparison:
    """A derived dataset compared with its source.

    Attributes:
        state: the result of `check_derived`.
        entries: the entries of the derived dataset, by its keys.
        reusable: the source's episodes whose results are stored, by these keys, also of current
            ones.
        missing: keys of the source's episodes whose results are not stored, in order.
        relabelled: keys in the source of episodes whose split or metadata have changed, by the
            derived dataset's.
    """

    state: Derivation
    entries: Mapping[str, Mapping[str, Any]]
    reusable: Mapping[str, StoredResults]
    missing: Sequence[str]
    relabelled: Mapping[str, str]


def _compare_with(source: DerivedSource, target: Dataset) -> _Comparison:
    """Compare a derived dataset with its source."""
    entries = _entries(target)
    by_uid = {str(entry["uid"]): key for key, entry in entries.items() if "uid" in entry}
    index = source.dataset.contents.index
    uids = {key: index.uid(number) for key, number in source.numbers.items()}
    of_others = {by_uid[uid] for uid in by_uid.keys() & uids.values()}
    current, changed, new, renamed = list[str](), list[str](), list[str](), dict[str, str]()
    reusable, missing, relabelled = dict[str, StoredResults](), list[str](), dict[str, str]()
    for key, number in source.numbers.items():
        # A new episode may have the former key of a renamed one.
        stored_key = by_uid.get(uids[key], None if key in of_others else key)
        if stored_key is None or stored_key not in target.episodes:
            new.append(key)
            missing.append(key)
            continue
        entry = entries[stored_key]
        if (rows := source.stored_rows(number, entry, stored_key, target)) is not None:
            reusable[stored_key] = StoredResults(number, rows)
        if has_other_labels := not source.has_labels(number, entry):
            relabelled[stored_key] = key
        if not source.is_current(number, entry, target):
            changed.append(stored_key)
            missing += [] if stored_key in reusable else [key]
        elif has_other_labels:
            changed.append(stored_key)
        elif stored_key == key:
            current.append(key)
        else:
            renamed[stored_key] = key
    handled = {*current, *changed, *renamed}
    if source.is_selection:  # the values of other episodes stay
        handled |= {
            key
            for key, entry in entries.items()
            if entry.get("uid") in index.positions_by_uid or key in index.positions
        }
    gone = tuple(filterfalse(handled.__contains__, target.episodes))
    state = Derivation(tuple(current), tuple(dict.fromkeys(changed)), tuple(new), gone, renamed)
    return _Comparison(state, entries, reusable, missing, relabelled)


def _entries(target: Dataset) -> dict[str, dict[str, Any]]:
    """Return the entries by key of the derived dataset."""
    entries = {}
    for key, episode in target.episodes.items():
        entry = episode.metadata.get(DERIVED_FROM)
        if not isinstance(entry, dict):
            raise ClipError(
                "the destination has episodes that derive has not written; derive into another "
                "folder",
                file=target.url,
                episode=key,
            )
        entries[key] = entry
    return entries


def _compare(
    source: DerivedSource,
    destination: str | PathLike[str],
    storage_options: Mapping[str, Any] | None,
) -> Derivation:
    with open_dataset(destination, storage_options=storage_options) as target:
        return _compare_with(source, target).state


def _update_labels(source: DerivedSource, place: _Place) -> None:
    """Copy splits and metadata that have changed in the source since they were copied.

    The destination's own stay until then: users may split a derived dataset itself.
    """
    destination, storage_options = place.destination, place.storage_options
    target = _existing(destination, storage_options)
    if target is None:
        return
    with target:
        relabelled = _compare_with(source, target).relabelled
    if not relabelled:
        return
    infos = {info.key: info for info in source.episodes()}
    keys_by_split = defaultdict[str | None, list[str]](list)
    for key, source_key in relabelled.items():
        keys_by_split[infos[source_key].split].append(key)
    for split, keys in keys_by_split.items():  # before the entries, which end this after a kill
        split_episodes(destination, keys, split, storage_options=storage_options)

    def make(dataset: EditedDataset) -> Change:
        texts, positions = dict[str, str](), dataset.index.positions
        for key, source_key in relabelled.items():
            entry = dataset.index.episode_metadata(positions[key])[DERIVED_FROM]
            metadata = infos[source_key].metadata
            entry = {**entry, "labels": metadata[DERIVED_FROM]["labels"]}
            text = encode_metadata({**metadata, DERIVED_FROM: entry})
            texts[dataset.index.uid(positions[key])] = text
        return [positions[key] for key in relabelled], [Relabel(texts)]

    edit_dataset(destination, make, False, storage_options, None)


def _update_columns(
    source: DerivedSource, place: _Place, codecs: Codecs | None, max_file_size: int | str | None
) -> None:
    """Replace the features beside the results of an existing dataset, where they differ."""
    target = _existing(place.destination, place.storage_options)
    if target is None:
        return
    with target:
        comparison = _compare_with(source, target)
        state = comparison.state
        update = ColumnUpdate(source, target, comparison.entries, comparison.reusable)
        if update.is_needed(state.changed, writes=bool(comparison.missing)):
            update.check_others([*state.changed, *state.gone])
            update.commit(place.destination, place.storage_options, codecs, max_file_size)


def _update(source: DerivedSource, place: _Place) -> None:
    """Rename episodes of an existing dataset, and choose those that new ones will replace."""
    destination, storage_options = place.destination, place.storage_options
    source.replaced, source.stored_schema, source.first_key = (), None, None
    target = _existing(destination, storage_options)
    if target is None:
        return
    with target:
        comparison = _compare_with(source, target)
        state = comparison.state
        source.first_key = next(iter(comparison.missing), None)
        if not (state.changed or state.new):
            source.stored_schema = target.features
        if state.changed or state.gone:
            keys = [*state.changed, *state.gone]
            if len(keys) == len(target.episodes):
                raise ClipError(
                    "no episode of the derived dataset is current; derive into another folder",
                    file=target.url,
                    got=f"{len(state.changed)} changed, {len(state.gone)} gone",
                )
            keys_of_renamed = {*keys}.intersection(state.renamed.values())
            # In the commit of the new values: a kill before loses nothing.
            source.replaced = [*filterfalse(keys_of_renamed.__contains__, keys)]
            if keys_of_renamed:
                delete_episodes(destination, [*keys_of_renamed], storage_options=storage_options)
        if state.renamed:
            rename_episodes(destination, state.renamed, storage_options=storage_options)
