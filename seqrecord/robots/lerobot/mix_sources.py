"""The sources of a mix as LeRobot's items: one per frame, with the windows of a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, located
from seqrecord.formats.export.lerobot_meta import TIMESTAMP
from seqrecord.formats.sources.lerobot.language import EVENTS
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.clips.windows import Nearest
from seqrecord.loader.engine.vectors import VectorSteps
from seqrecord.loader.frames.normalization import Normalization
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.option_values import Vector
from seqrecord.loader.pipes.options import ClipOptions, LoaderOptions
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.robots.lerobot.items import Episodes
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.units import check_positions

COMPUTED = ("episode_index", "frame_index", "index", "task_index", "dataset")
"""Columns of items that are not read."""

_OF_SOURCE = ("shuffle",)
_ALONE = {"samples": None, "dilation": 1}  # options excluded by windows of a policy


@dataclass(frozen=True, eq=False)
class MixSource:
    """A source of a mix: its episodes, and each of its frames as an item. Picklable.

    Attributes:
        name: its name in the mix.
        dataset: its dataset, with the requested features under their new names.
        options: its clips.
        rows: the rows of its episodes in the dataset, int64 [n].
        first_episode: the number of its first episode in the mix.
        given: its clips as given.
    """

    name: str
    dataset: Dataset
    options: LoaderOptions
    rows: IntArray
    first_episode: int
    given: View

    def has(self, name: str) -> bool:
        """Whether batches have a feature of the source."""
        return name in self.given.batch_arrays

    @property
    def vectors(self) -> VectorSteps:
        """Steps of its features: placement, and normalization by the mix."""
        return self.given.vectors

    @cached_property
    def lengths(self) -> IntArray:
        """Each episode's number of frames, int64 [n]."""
        return self.dataset.contents.index.num_frames.astype(np.int64)[self.rows]

    @cached_property
    def keys(self) -> list[str]:
        """The keys of the episodes."""
        return self.dataset.contents.index.keys_of(self.rows)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number in the mix of each episode, by key."""
        return {key: number for number, key in enumerate(self.keys, self.first_episode)}

    @cached_property
    def view(self) -> View:
        """Every frame as a clip."""
        return make_view(self.dataset, replace(self.options, stride=1, samples=None))

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """The frame rate of each episode, float64 [n]; 0 if unknown."""
        return self.dataset.contents.index.fps[self.rows]

    @property
    def fps(self) -> float | None:
        """The frame rate of its first episode."""
        return self.dataset.episodes[self.keys[0]].fps

    def with_windows(
        self,
        deltas: Mapping[str, Sequence[int]],
        normalizations: Mapping[str, Normalization],
    ) -> MixSource:
        """The source with a policy's windows, in steps of the source, and these normalizations.

        A window of the source's own is kept if it has as many frames; otherwise, and if the policy
        has no window there, this raises `ClipError`.
        """
        with located(ClipError, file=self.dataset.url):
            options = _options(self.name, self.options, self.dataset.features, deltas)
            places = {n: s.places for n, s in self.vectors.items() if s.places is not None}
            vectors = {
                name: Vector(
                    places.get(name),
                    self.vectors[name].size if name in places else None,
                    normalizations.get(name),
                )
                for name in {**places, **normalizations}
            }
            options = replace(options, vectors=vectors or None)
            source = replace(self, options=options)
            _check_lengths(source, deltas)
        return source

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The metadata of each episode."""
        episodes = self.dataset.episodes
        return (episodes[key].metadata for key in self.keys)


class MixEpisodes(Episodes):
    """Numbers of the episodes and frames of a mix, counted over all sources.

    Args:
        sources: the sources.
        chosen: numbers of the episodes with items. Default: all.

    Attributes:
        of_sources: for each source, `first_items` of its dataset's episodes.
    """

    def __init__(
        self, sources: Sequence[MixSource], selected_numbers: Collection[int] | None = None
    ) -> None:
        self._firsts = np.array([source.first_episode for source in sources])
        lengths = np.concatenate([source.lengths for source in sources])
        number = (
            np.arange(len(lengths)) if selected_numbers is None else np.unique([*selected_numbers])
        )
        if not len(number) or number[0] < 0 or number[-1] >= len(lengths):
            raise ClipError(
                "no such episodes of the mix",
                expected=f"numbers from 0 to {len(lengths) - 1}",
                got=list(selected_numbers or ()),
            )
        super().__init__(lengths, number.astype(np.int64))
        self.of_sources: dict[str, IntArray] = {}
        for source in sources:
            first_items = np.full(len(source.dataset.contents.index.num_frames), -1)
            first_items[source.rows] = self.first_items[source.first_episode :][: len(source.rows)]
            self.of_sources[source.name] = first_items

    def chosen_rows(self, source: MixSource) -> IntArray:
        """The rows of a source's episodes with items, in its dataset."""
        return source.rows[self.of_sources[source.name][source.rows] >= 0]

    def locate(self, items: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Convert numbers of items to numbers of sources, and of frames in their source.

        Negative numbers count from the end. Raises `IndexError` for others than the items'.
        """
        numbers = check_positions(items, self.num_items, "item")
        first_items = self.first_items[self.chosen]
        place = np.searchsorted(first_items, numbers, side="right") - 1
        episode = self.chosen[place]
        source = np.searchsorted(self._firsts, episode, side="right") - 1
        frame = self.begins[episode] + numbers - first_items[place]
        return source, frame - self.begins[self._firsts[source]]


def mix_sources(loaders: Mapping[str, ViewLoader]) -> list[MixSource]:
    """The sources of a mix's loaders. Raises `ClipError` for options that items exclude."""
    sources, episode = list[MixSource](), 0
    clocks = {str(_clock(loader_of_source.view.dataset)) for loader_of_source in loaders.values()}
    for name, loader in loaders.items():
        view = loader.view
        dataset = view.dataset
        with located(ClipError, file=dataset.url):
            _check(name, loader.options)
        # Clocks that do not make one column; lists of rows, which LeRobot's batches leave out.
        left_out = {EVENTS, TIMESTAMP} if len(clocks) > 1 else {EVENTS}
        if left_out & dataset.features.keys():
            dataset = dataset.select(
                [
                    loader_of_source
                    for loader_of_source in dataset.features
                    if loader_of_source not in left_out
                ]
            )
        rows = view.episode_rows
        sources.append(MixSource(name, dataset, loader.options, rows, episode, view))
        episode += len(rows)
    return sources


def _clock(dataset: Dataset) -> FeatureSpec | None:
    return dataset.features.get(TIMESTAMP)


def _check(name: str, options: LoaderOptions) -> None:
    excluded = [option for option, default in _ALONE.items() if getattr(options, option) != default]
    excluded += ["clip_len"] if options.clip_len not in (None, 1) else []
    excluded += ["pad"] if options.pad not in (None, "edge") else []
    if excluded:
        raise ClipError(
            f"source {name!r}: LeRobot's items have the windows of a policy",
            expected=f"no {', '.join(excluded)}",
        )


def _options(
    name: str,
    source_options: LoaderOptions,
    features: Collection[str],
    deltas: Mapping[str, Sequence[int]],
) -> LoaderOptions:
    windows: dict[str, Any] = {name: deltas[name] for name in filter(deltas.__contains__, features)}
    for feature, window in (source_options.windows or {}).items():
        if isinstance(window, Nearest) and window.window is None and feature in windows:
            windows[feature] = replace(window, window=windows[feature])
        elif feature in windows or isinstance(window, Nearest):
            windows[feature] = window
        elif feature in features:
            raise ClipError(
                f"source {name!r} has a window of a feature for which the policy has none",
                feature=feature,
                expected="no window",
                got=window,
            )
    option_names = (*map(attrgetter("name"), fields(ClipOptions)), *_OF_SOURCE)
    arguments = {option_name: getattr(source_options, option_name) for option_name in option_names}
    arguments |= {"features": None, "rename": None, "resize": None}  # the dataset has them
    arguments |= {"vectors": None, "seed": 0}
    engine = {
        option_name: getattr(source_options.tuning, option_name)
        for option_name in ("num_cursors", "shuffle_buffer")
    }
    return LoaderOptions(
        **{
            **arguments,
            "clip_len": None if windows else 1,
            "windows": windows or None,
            "pad": "edge" if windows else None,
            "squeeze_time": True,
            "engine": replace(LoaderOptions(clip_len=1).tuning, **engine),
        }
    )


def _check_lengths(source: MixSource, deltas: Mapping[str, Sequence[int]]) -> None:
    for feature, frames in deltas.items():
        got = source.view.lengths.get(feature, len(frames))
        if got != len(frames):
            raise ClipError(
                f"source {source.name!r}: the window of a feature has another number of frames "
                "than the policy's",
                feature=feature,
                expected=f"{len(frames)} frames, or no window: the default is the policy's, in "
                "steps of the source",
                got=f"{got} frames",
            )
