"""Positions: the shard and the first batch of an iteration, and their saved states."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.distributed import batches_of_workers
from seqrecord.pipes.iterations import BatchSource
from seqrecord.pipes.states import RemainingEpoch, Sharing, State, check_same
from seqrecord.pipes.worker_epochs import Start


class Place(NamedTuple):
    """A batch of an epoch, or of its rest, in one shard."""

    epoch: int
    batch: int | tuple[int, ...]  # of the worker of `sharing`, or of each of them
    sharing: Sharing
    rest: RemainingEpoch | None


def find_place(
    loader: BatchSource,
    loaded: State | None,
    start: Start,
    sharing: Sharing,
    *,
    is_assigned: bool = False,
) -> Place:
    """The place of an iteration with this sharing.

    Inside an epoch, worker 0 continues the shard whose turn is next, because a DataLoader requests
    its batch first, and so on. A worker that `is_assigned` has its own state from a
    StatefulDataLoader. `loaded` is the last loaded state.

    Raises `StateError` if other shards have begun the epoch, and the state lacks some of their
    positions.
    """
    rest, given, own = None, list[int](), sharing.worker
    if loaded is not None and (start.is_loaded or loader.continues_epochs):
        worker, rest = loaded.sharing.worker, loaded.rest
        is_own = not start.is_loaded or is_assigned or None in (worker, own) or worker == own
        if is_own and continues(loader, loaded, sharing):
            given = [*loaded.batches] if start.is_loaded else []
            if given and None not in (own, worker):
                sharing = replace(sharing, worker=worker)
        elif start.is_loaded or loaded.is_of_all:
            rest = loader.remainder_after(loaded)
        if rest is not None and start.epoch < rest.epoch:
            rest = None
    if own is None or not (given or start.batches):
        return Place(start.epoch, 0, sharing, rest)
    if len(given) == 1:
        return Place(start.epoch, given[0], sharing, rest)
    found, most = items_given(loader, start, rest, sharing.workers)
    given = given or found
    behind = [i for i, (n, m) in enumerate(zip(given, most, strict=True)) if n < min(m, max(given))]
    worker = (own + behind[0] if behind else own) % sharing.workers
    return Place(start.epoch, given[worker], replace(sharing, worker=worker), rest)


def items_given(
    loader: BatchSource, start: Start, rest: RemainingEpoch | None, num_workers: int
) -> tuple[list[int], list[int]]:
    """The numbers of items that each worker of this rank has returned at a start, and has."""
    shards = loader.ranks.worker_shards(num_workers)
    most = [loader.plan(start.epoch, shard, rest).num_batches for shard in shards]
    size = start.batch_size
    given = batches_of_workers([-(-items // size) for items in most], start.batches)
    return [min(n * size, items) for n, items in zip(given, most, strict=True)], most


def state_at(loader: BatchSource, place: Place) -> State:
    """The state of a loader at a place."""
    epoch, batch, sharing, rest = place
    rests = [None] * len(loader.sources) if rest is None else rest.sources
    pairs = zip(loader.sources, rests, strict=True)
    sources = tuple(source.state(sharing.num_shards, own) for source, own in pairs)
    return State(epoch, batch, sharing, loader.shared_arguments(), sources, rest)


def restore_settings(loader: BatchSource, state: State, num_shards: int) -> None:
    """Check a state, and use its settings for this number of shards.

    Raises `StateError` for a state of another loader, and `MemoryLimitError` if its settings need
    more memory; only if the state has the same number of shards.
    """
    found = {**state.shared_arguments, "sources": len(state.sources)}
    now = {**loader.shared_arguments(), "sources": len(loader.sources)}
    problem = "the saved state is of another kind of loader, or of another mix"
    check_same(problem, found, now, {**now, **found})
    any_batch_size = state.is_of_all and not state.shared_arguments  # but for a mix
    for source, saved, rest in zip(loader.sources, state.sources, state.rests, strict=True):
        source.check_state(saved, rest, any_batch_size=any_batch_size)
    is_same = state.sharing.num_shards == num_shards
    if state.is_begun or is_same or loader.continues_epochs:
        loader.check_place(state)
        try:
            use_settings(loader, state)
        except MemoryLimitError:
            if is_same:
                raise


def continues(loader: BatchSource, state: State, sharing: Sharing) -> bool:
    """Whether `sharing` continues the plans of a state."""
    of_all = replace(sharing, worker=None) == replace(state.sharing, worker=None)
    return of_all and _has_batches_of(loader, state)


def use_settings(loader: BatchSource, state: State) -> None:
    """Use the settings of a state for its number of shards, unless its batch size differs.

    Raises `MemoryLimitError` with the smallest sufficient limit; all settings then stay unchanged.
    """
    if _has_batches_of(loader, state):
        each = zip(loader.sources, state.sources, state.rests, strict=True)
        count = state.sharing.num_shards
        found = [(one, one.memory_plans_of(saved, count, rest)) for one, saved, rest in each]
        for source, plans in found:
            source.planner.keep(plans)


def _has_batches_of(loader: BatchSource, state: State) -> bool:
    """Whether a state counts batches of the loader's size."""
    sizes = [source.planner.options.batch_size for source in loader.sources]
    return sizes == [source.settings.batch_size for source in state.sources]
