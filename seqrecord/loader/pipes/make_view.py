"""`make_view`: makes a view of a location and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.errors import ClipError, SeqRecordError, located
from seqrecord.loader.clips.frames import UNKNOWN, NearestWindow
from seqrecord.loader.clips.layouts import episode_layout
from seqrecord.loader.clips.tables import EpisodeLayout, IntArray
from seqrecord.loader.engine.arena import FORMS, stacked
from seqrecord.loader.frames.array_specs import ArraySpec, bind_schema
from seqrecord.loader.pipes.columns import NO_DRAWS, ClipEpisodes
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.epoch_samples import EpochSamples
from seqrecord.loader.pipes.frame_arrays import (
    FrameArrays,
    bytes_by_group,
    check_tensors,
    find_arrays,
)
from seqrecord.loader.pipes.option_values import FrameCache
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.loader.pipes.registered_columns import ImageColumns, find_maker
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_episodes import ViewEpisodes, checked_samples, complete_clips
from seqrecord.loader.reading.chunk_store import with_chunk_store
from seqrecord.store.areas import FRAME_CACHE, load_entry
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.dataset import (
    Dataset,
    DatasetLike,
    skipping_bad_episodes,
    with_attached,
)
from seqrecord.store.reading.filters import check_metadata
from seqrecord.store.reading.opening import dataset_of
from seqrecord.store.schema import Schema
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import repr_of, shown_place
from seqrecord.store.units import parse_size, raise_if

if TYPE_CHECKING:
    from seqrecord.loader.pipes.text_columns import Cut

_PIECE_FRAMES = 32  # at most, as other chunks have
_PIECE_BYTES = 48 << 20  # decoded, likewise
_LEAST_FRAMES = 4
_CHECKED_CLIPS = 1 << 16  # at once
_OF_DRAWS = ("crop", "flipped")  # columns of a `clip_transform`


def make_view(location: DatasetLike, options: ClipOptions) -> View:
    """Select the samples of a request, and determine their frames, arrays and columns.

    One warning has the numbers of skipped episodes and clips.

    Raises `ClipError` if there is no clip, or for a feature with a dtype that torch lacks.
    """
    dataset, options = _open(location, options)
    with located(ClipError, file=dataset.url):
        if options.rename:
            dataset = dataset.renamed(options.rename)
        if options.resize is not None:
            dataset = dataset.resized(options.resize)
        selected = dataset.contents.find_episodes(options.episodes, options.split)
        make = complete_clips
        if options.table is not None:
            from seqrecord.loader.pipes.clip_tables import samples_of_table as make
        episodes, samples = make(options, dataset, selected)
        epochs, left_out = checked_samples(options, episodes, samples)
        arrays = find_arrays(options, episodes, epochs)
        view = _view(options, episodes, epochs, arrays, left_out)
        if view.draws.sized_by_frames:
            _check_known_sizes(view)
        if options.clip_functions:
            view = _with_functions(options, view)
        if options.vectors:
            from seqrecord.loader.pipes.vectors import vector_steps

            view = view.with_vectors(vector_steps(view, options.vectors))
        view = _with_form(options, view)
        if dataset.contents.dictionaries:
            from seqrecord.loader.pipes.text_columns import text_columns

            texts = text_columns(dataset, view.batch_arrays, options.features, options.ragged)
            view = replace(view, texts=texts)
        reserved = view.order_columns
        if options.clip_transform is not None:
            reserved += _OF_DRAWS
        _check_entries(view, reserved)
    view.memory.get()  # as long as this lives
    if left_out:
        clips = f"{view.samples.common.clips.num_clips:,} clips"
        warn_once(f"{shown_place(dataset.url)}: {clips}; left out: {left_out}")
    file = dataset.contents.manifest.statistics
    if options.frame_transform is None and file is not None and file.non_finite:
        _warn_of_values(dataset, selected)
    return view


def _open(location: DatasetLike, options: ClipOptions) -> tuple[Dataset, ClipOptions]:
    """Open the dataset of a request, with its caches, and without bad episodes of a table."""
    dataset = dataset_of(location, features=options.features)
    if not dataset.contents.chunks.has_path:
        dataset = with_chunk_store(dataset)
    if options.skip_bad_episodes:
        dataset = skipping_bad_episodes(dataset)
    if (cache := options.frame_cache or FrameCache.from_environment()) is not None:
        folder = local_path(cache.folder, "frame_cache").absolute()
        open_folder = load_entry(FRAME_CACHE)
        dataset = with_attached(dataset, open_folder(folder, parse_size(cache.limit)))
    if dataset.contents.bad.left_out and options.table is not None:
        return _without_bad_clips(dataset, options)
    return dataset, options


def _without_bad_clips(dataset: Dataset, options: ClipOptions) -> tuple[Dataset, ClipOptions]:
    """Check a sample table's bad episodes, and remove them if that is allowed."""
    bad = dataset.contents.bad
    from seqrecord.loader.clips.sample_tables import without_left_out
    from seqrecord.loader.clips.segments import Segments

    segments = options.table if isinstance(options.table, Segments) else None
    table = options.table if segments is None else segments.table
    samples: Any
    samples, places = without_left_out(table, dataset.contents.episode_names)
    samples = samples if segments is None else Segments(samples)
    count = len(bad.records)
    if not bad.are_skipped:
        for place in places[places >= count][:1].tolist():
            record = bad.dropped[place - count]
            raise ClipError(
                "samples has an episode that the dataset leaves out",
                episode=record["key"],
                expected="other episodes, or skip_bad_episodes=True",
                got=f"number {record['number']}",
            )
    records = [bad.records[place] for place in places[places < count].tolist()]
    replace(bad, records=records).check(options.episodes, options.split)
    return skipping_bad_episodes(dataset), replace(options, samples=[samples, *options.functions])


def _warn_of_values(dataset: Dataset, selected: IntArray) -> None:
    """Warn of NaN and infinities that the stored statistics list for selected episodes."""
    found, index = [], dataset.contents.index
    with suppress(SeqRecordError):  # damaged statistics; `verify` reports them
        for name, known in dataset.statistics.items():
            places = {at.episode: at for at in known.non_finite if name in dataset.features}
            rows = dataset.contents.find_episodes([*places]) if places else selected[:0]
            if keys := {index.key(int(row)) for row in np.intersect1d(rows, selected)}:
                chosen = tuple(at for key, at in places.items() if key in keys)
                text = replace(known, non_finite=chosen).non_finite_text()
                found.append(f"feature {name}: {text}")
    if found:
        warn_once(f"{shown_place(dataset.url)}: NaN or infinite values; {'; '.join(found)}")


def _view(
    options: ClipOptions,
    episodes: ViewEpisodes,
    epochs: EpochSamples,
    arrays: FrameArrays,
    left_out: str,
) -> View:
    """The view before functions and vectors: samples, frames, arrays and draws."""
    dataset, windows, lists = episodes.dataset, episodes.windows, episodes.lists
    metadata, cameras = tuple(options.metadata or ()), options.cameras
    names = (*metadata, "camera") if cameras else metadata  # flips need the model of a lens
    clip_episodes = ClipEpisodes(dataset, names, lists, epochs.common.repeats)
    steps = None
    if options.has_drawn_steps:
        from seqrecord.loader.pipes.clip_steps import StepSampler

        steps = StepSampler(options.dilation, options.most_frames or 1, options.span)
    clip_frames = windows.of_arrays(arrays.rows)
    check_tensors(arrays.rows)
    draws, batch_arrays = NO_DRAWS, arrays.rows
    image_columns: ImageColumns | None = None
    if options.camera is not None:
        row = int(clip_episodes.rows(epochs.first_clip.episode)[0])
        image_columns = find_maker("camera").make(
            options.camera, dataset, arrays.rows, clip_frames.windows, row
        )
        if arrays.transform is not None:
            for name in image_columns.images:
                _check_frame_size(name, arrays.stored[name], arrays.rows[name])
    if cameras or dataset.contents.sizes or options.clip_functions:
        from seqrecord.loader.pipes.draws import AugmentationSampler

        draws = sampler = AugmentationSampler(
            *(cameras, arrays.rows, dataset, clip_episodes, image_columns),
        )
        batch_arrays = sampler.arrays
    has_transform = arrays.transform is not None
    return View(
        dataset=dataset,
        episode_rows=episodes.selected,
        episodes=_episode_table(episodes, epochs, arrays.stored, has_transform=has_transform),
        samples=epochs,
        lists=lists,
        left_out=left_out,
        windows=windows,
        clip_frames=clip_frames,
        steps=steps,
        stored_arrays=arrays.stored,
        arrays=arrays.rows,
        batch_arrays=batch_arrays,
        transform=arrays.transform,
        is_deterministic=arrays.is_deterministic,
        unchanged_features=arrays.unchanged,
        draws=draws,
        image_columns=image_columns,
        lengths=clip_frames.lengths,
        nested=arrays.nested,
        clip_episodes=clip_episodes,
        metadata=metadata,
        order_columns=options.epoch_order.columns,
    )


def _check_frame_size(image: str, stored: ArraySpec, made: ArraySpec) -> None:
    """Raise `ClipError` for an image with a camera that a `frame_transform` resizes: K would be
    wrong. Results have one size, so frames whose stored size varies are resized.
    """
    if None in stored.shape[:2]:
        raise ClipError(
            "camera: frame_transform of images whose stored size varies",
            feature=image,
            expected="frames of one size, with resize=; or the function in clip_transform, after "
            "Resize or a crop",
            got=str(stored),
        )
    if made.shape[:2] != stored.shape[:2]:
        raise ClipError(
            "camera: frame_transform changes the size of an image",
            feature=image,
            expected=f"{stored}; resize= and crops of clip_transform move its camera",
            got=str(made),
        )


def _check_known_sizes(view: View) -> None:
    """Raise `ClipError` for a clip of epoch 0 with an unknown frame whose size a crop needs."""
    from seqrecord.loader.engine.crops import unknown_size

    clips, frames = view.samples.common.clips, view.frames(0)
    for name in sorted(view.draws.sized_by_frames):
        window = frames.windows[name]
        if not (isinstance(window, NearestWindow) and window.has_unknown):
            continue
        unknown = replace(window, has_unknown=False).unknown_frames
        run = np.flatnonzero(np.isin(clips.episode, unknown.episode))
        part = clips.pieces(run, np.zeros_like(run), clips.count[run])
        for begin in range(0, part.num_clips, _CHECKED_CLIPS):
            keys = part.locate(np.arange(begin, min(begin + _CHECKED_CLIPS, part.num_clips)))
            age = window.find(keys, frames, checks=False).age
            assert age is not None, "a window with ages"
            for clip in np.flatnonzero((age == UNKNOWN).any(axis=1))[:1].tolist():
                key = view.clip_episodes.key(int(keys.episode[clip]))
                raise unknown_size(int(keys.start[clip]), episode=key, feature=name)


def _check_entries(view: View, reserved: Sequence[str] = ()) -> None:
    """Raise `ClipError` if two entries of a batch have one name, or metadata are unknown."""
    features = (*view.batch_arrays, *(view.texts.arrays if view.texts is not None else ()))
    of_order = {*view.columns.entries}.difference(features)
    others = replace(view.columns, metadata=()).in_table(view.samples.in_epoch(0).samples, of_order)
    taken = {*reserved, *map(attrgetter("name"), others)}
    if wrong := taken.intersection(features):
        wrong_names = sorted(wrong, key=features.index)
        names = ", ".join(f"'{name}': 'my_{name}'" for name in wrong_names)
        raise ClipError(
            "a feature has the name of a batch's extra column; give it another name: "
            f"rename={{{names}}}",
            got=", ".join(wrong_names),
        )
    if twice := taken.union(features).intersection(view.metadata):
        raise ClipError(
            "a feature, or a batch's extra column, has the name of this metadata",
            expected="names that are not in clips yet",
            got=", ".join(sorted(twice, key=view.metadata.index)),
        )
    check_metadata(view.dataset.contents.index, view.episode_rows, view.metadata)


def _with_form(options: ClipOptions, view: View) -> View:
    """Add the form of features in a clip: nested, without an axis of frames, or cut to its length.

    Results of functions have the form that these return.
    """
    arrays, lists, called = view.batch_arrays, view.lists, view.draws.functions
    ragged = {name for name, spec in arrays.items() if FORMS[spec.value_kind].takes_ragged}
    nested = frozenset(ragged.intersection(view.nested))
    if called is not None:
        return replace(view, nested=nested, squeezed=called.single)
    squeezed = set[str]()
    form: Cut = "pad"
    if options.squeeze_time:
        windows, usual = view.clip_frames.windows, view.windows.usual
        squeezed = {name for name in arrays if windows.get(name) is usual} - ragged
    if lists is not None and lists.length_of is not None:
        form = options.ragged if isinstance(options.ragged, str) else "list"
        _check_cut(form, arrays, nested)
    return replace(view, nested=nested, squeezed=frozenset(squeezed), cut=form)


def _check_cut(form: str, made: Mapping[str, ArraySpec], nested: Collection[str]) -> None:
    """Raise `ClipError` if a nested tensor would have two varying dimensions."""
    varying = made.keys() - stacked(made) if form == "nested" else nested
    problem = "nested tensors of lists of frames that differ in length need one shape"
    raise_if(bool(varying), problem, 'ragged="list" or "pad"', ", ".join(varying))


def _with_functions(options: ClipOptions, view: View) -> View:
    """Add the functions of `clip_transform`, called here with the first clip.

    Raises `ClipError` for clips of several shapes.
    """
    _check_entries(view)  # the columns of the first clip
    if options.clip_lens is not None or options.draws_sizes:
        raise ClipError(
            "functions of clip_transform make clips of one shape",
            expected="an integer clip_len, and no BatchResize; or crops and flips alone, and "
            "functions of whole batches in the training loop",
            got=f"clip_len={options.clip_len}, "
            f"clip_transform={repr_of(options.clip_transform, 100)}",
        )
    from seqrecord.loader.engine.calls import ClipFunctions
    from seqrecord.loader.pipes.map_clips import MapClips

    functions = tuple(
        bind_schema(function, view.dataset.features) for function in options.clip_functions
    )
    first, clip_episodes = view.samples.first_clip, view.clip_episodes
    clip = MapClips(view, 0).example(first)
    place = int(clip_episodes.rows(first.episode)[0]), int(clip_episodes.starts(first)[0])
    images = frozenset(() if view.image_columns is None else view.image_columns.images)
    called = ClipFunctions.of(functions, view.dataset, *clip, *place, view.batch_arrays, images)
    arrays = {n: replace(spec, shape=spec.shape[1:]) for n, spec in called.made.items()}
    check_tensors(arrays)
    lengths = {n: int(spec.shape[0] or 0) for n, spec in called.made.items()}
    draws = copy(view.draws)
    draws.functions = called
    return replace(view, draws=draws, batch_arrays=arrays, lengths=lengths)


def _episode_table(
    episodes: ViewEpisodes,
    epochs: EpochSamples,
    stored: Mapping[str, ArraySpec],
    *,
    has_transform: bool,
) -> EpisodeLayout:
    """The tables of the requested groups.

    With a frame transform, a single table: its loads read the chunks of all groups.
    """
    dataset = episodes.dataset
    features = dataset.features
    nbytes = bytes_by_group(stored, features)
    table = _in_pieces(episode_layout(dataset.contents), features)
    if episodes.lists is not None:
        table = episodes.lists.table(table)
    table = table.with_leading(nbytes.index(max(nbytes)), epochs.common.clips.selected)
    if not has_transform:
        return table
    units = [grid.unit_frames for grid in table.groups]
    unit = max(units) if all(units) else 0
    return EpisodeLayout(table.num_frames, (replace(table.leading_grid, unit_frames=unit),))


def _in_pieces(table: EpisodeLayout, features: Schema) -> EpisodeLayout:
    """The episodes with long chunks of video in pieces, see `ChunkGrid.in_pieces`, and with
    chunks of raw features marked, of which single frames are read: texts beside them are short.

    A video chunk is at least one group of pictures, of up to 256 frames. Decoded at once, it would
    need memory for all of them. So plans treat pieces of it as chunks: each piece is decoded as far
    as clips need it, and the engine keeps the page and its decoder open between two pieces of a
    cursor's chunk.
    """
    groups = []
    for grid in table.groups:
        in_order, by_frame, units = None, True, [1]
        for spec in features.values():
            if spec.group == grid.group:
                kind = page_kind(spec)
                by_frame &= kind.in_slices or spec.value_kind.are_short
                units.append(kind.decoding_unit(spec))
                if kind.decodes_in_order and in_order is None:
                    in_order = spec
        unit_frames = max(units) if all(units) else 0
        marked = replace(grid, by_frame=by_frame, unit_frames=unit_frames)
        if in_order is not None:
            most = max(_LEAST_FRAMES, min(_PIECE_FRAMES, _PIECE_BYTES // in_order.nbytes))
            marked = marked.in_pieces(table.num_frames, most)
        groups.append(marked)
    return replace(table, groups=tuple(groups))
