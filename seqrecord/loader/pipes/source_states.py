"""The saved state of a dataset's order, and its comparison with a loader's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqrecord.errors import StateError
from seqrecord.loader.pipes.states import Json, Segments, SourceState, check_same
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_order import SavedSettings, ViewOrder
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.store.text import repr_of

_COMPARED = "shuffle", "seed", "last_batch", "order"
"""Settings of plans that are arguments; memory determines the others, except the batch size."""


def source_state(
    order: ViewOrder,
    num_shards: int,
    epoch: int = 0,
    segments: Segments = (),
    samples_of: int = 0,
) -> SourceState:
    """The order settings for epochs with `num_shards` shards, and for the rest of one, with the
    samples of an epoch.
    """
    rest = order.find_settings(num_shards, epoch, segments) if segments else None
    request = {**order.request, "samples": order.view.samples.digest(samples_of)}
    settings = order.find_settings(num_shards)
    view = order.view
    return SourceState(
        settings,
        request,
        view.identity,
        rows=view.num_rows,
        rest=rest,
        normalization=view.normalizations,
    )


def has_fewer(source: SourceState, view: View) -> bool:
    """Whether a state has fewer episodes than a view, or fewer rows of a table: if they are the
    first ones, the data have grown since.
    """
    if view.num_rows is not None:
        return source.rows is not None and 0 < source.rows < view.num_rows
    count = source.episodes.get("count")
    return type(count) is int and 0 < count < len(view.episode_rows)


def saved_settings(
    source: SourceState, num_shards: int, epoch: int, segments: Segments
) -> SavedSettings:
    """The settings of a state's source by their place in `ViewOrder.keep`: for whole epochs and for
    the rest of one.
    """
    settings: SavedSettings = {(num_shards, 0, ()): source.settings}
    if source.rest is not None:
        settings[num_shards, epoch, segments] = source.rest
    return settings


def check_source(
    order: ViewOrder, state: SourceState, earlier: Sequence[PlanSettings], samples_of: int
) -> None:
    """Raise `StateError` for a state of other clips or another order, with the differences.

    `earlier` are the settings of finished segments.

    Allowed differences: settings derived from memory and defaults, the batch size, the dataset's
    location, and speed, threads and memory of reading.
    """
    view = order.view
    url, episodes, saved = view.dataset.url, view.identity, state.settings
    problem = "segments of the saved state have different settings"
    compared = [name for name in _COMPARED if saved.shuffle or name != "seed"]
    num_groups = len(view.episodes.groups)
    for other in (saved, state.rest or saved, *earlier):
        check_same(problem, vars(saved), vars(other), compared, url)
        if other.group >= num_groups:
            expected, got = f"a number below {num_groups}", other.group
            raise StateError(
                "no such group in the saved state", file=url, expected=expected, got=got
            )
    now = {**order.request, **{name: getattr(order.settings, name) for name in _COMPARED}}
    now["samples"] = order.view.samples.digest(samples_of)
    now["num_cursors"] = order.options.tuning.num_cursors
    is_shuffled = order.settings.shuffle or saved.shuffle
    is_mixed = is_shuffled and order.kind.is_mixed
    may_differ = {
        "num_cursors": True,  # an upper bound
        "shuffle_buffer": now["shuffle_buffer"] is None or not is_mixed,
        "seed": not is_shuffled and not view.samples.common.are_random,
    }
    problem = "the saved state is of other settings"
    names = dict.fromkeys((*now, *state.request))  # either may lack an optional one
    compared = [name for name in names if not may_differ.get(name)]
    check_same(problem, {**state.request, **vars(saved)}, now, compared, url)
    if state.episodes.get("digest") != episodes["digest"]:
        raise _other_episodes(view, state.episodes)


def _other_episodes(view: View, saved: Json) -> StateError:
    """The error for other episodes, with their first difference."""
    if saved.get("dataset") == view.identity["dataset"]:
        problem = "the saved state is of other episodes of this dataset"
    else:
        problem = "the saved state is of another dataset, or this one has changed: select the "
        problem += "state's episodes, if they are still the same"
    keys = view.dataset.contents.index.keys_of(view.episode_rows)
    first, stop = view.dataset.contents.differing_episodes(view.episode_rows, saved) or (0, 0)
    differing = keys[first:stop]
    numbers = view.dataset.contents.numbers_of(view.episode_rows[first:stop]).tolist()
    if first >= len(keys) and stop:
        problem += f"; the first {len(keys)} are equal, and then it ends"
    elif differing:
        several = f"one of the numbers {numbers[0]} to {numbers[-1]}"
        which = several if len(numbers) > 1 else f"number {numbers[0]}"
        problem += f"; {which} is the first that differs"
    expected, got = map(_described, (saved, view.identity))
    episode = differing[0] if differing else None
    return StateError(problem, file=view.dataset.url, episode=episode, expected=expected, got=got)


def _described(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (repr_of(episodes.get(n)) for n in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"
