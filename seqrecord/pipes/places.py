"""The position at which an iteration starts, and the settings of a loaded state."""

from __future__ import annotations

from dataclasses import replace

from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.distributed import batches_of_workers
from seqrecord.pipes.iterations import BatchSource
from seqrecord.pipes.states import Segments, State, check_same
from seqrecord.pipes.worker_starts import Start


def find_place(
    loader: BatchSource,
    loaded: State | None,
    start: Start,
    own: State,
    *,
    is_assigned: bool = False,
) -> State:
    """The position of an iteration of `own`, a worker or all of them, without the order's inputs.

    Inside an epoch, worker 0 continues the shard whose turn is next, because a DataLoader requests
    its batch first, and so on. A worker that `is_assigned` has its own state from a
    StatefulDataLoader. `loaded` is the last loaded state.

    Raises `StateError` if other shards have begun the epoch, and the state lacks some of their
    positions.
    """
    place, given = replace(own, epoch=start.epoch), list[int]()
    if loaded is not None and start.is_loaded:
        one_of_all = None in (own.worker, loaded.worker)
        is_own = is_assigned or one_of_all or own.worker == loaded.worker
        if is_own and continues(loader, loaded, own):
            place, given = replace(place, segments=loaded.segments), [*loaded.batches]
            if not one_of_all:
                return replace(place, worker=loaded.worker, batch=given[0])
        else:
            epoch, segments = loader.after_change(loaded)
            place = replace(place, epoch=epoch, segments=segments)
    if own.worker is None or not (given or start.batches):
        return place
    found, most = items_given(loader, start, place.segments, own.workers)
    given = given or found
    behind = [i for i, (n, m) in enumerate(zip(given, most, strict=True)) if n < min(m, max(given))]
    worker = (own.worker + behind[0] if behind else own.worker) % own.workers
    return replace(place, worker=worker, batch=given[worker])


def items_given(
    loader: BatchSource, start: Start, segments: Segments, num_workers: int
) -> tuple[list[int], list[int]]:
    """The numbers of items that each worker of this rank has returned at a start, and has."""
    shards = loader.ranks.worker_shards(num_workers)
    most = [loader.plan(start.epoch, shard, segments).num_batches for shard in shards]
    size = start.batch_size
    given = batches_of_workers([-(-items // size) for items in most], start.batches)
    return [min(n * size, items) for n, items in zip(given, most, strict=True)], most


def state_at(loader: BatchSource, place: State) -> State:
    """The state of a loader at a position."""
    epoch, segments = place.epoch, place.segments
    sources = tuple(one.state(place.num_shards, epoch, segments) for one in loader.sources)
    return replace(place, shared_arguments=loader.shared_arguments(), sources=sources)


def restore_settings(loader: BatchSource, state: State, num_shards: int) -> None:
    """Check a state, and use its settings for this number of shards.

    Raises `StateError` for a state of another loader, and `MemoryLimitError` if its settings need
    more memory; only if the state has the same number of shards.
    """
    found = {**state.shared_arguments, "sources": len(state.sources)}
    now = {**loader.shared_arguments(), "sources": len(loader.sources)}
    problem = "the saved state is of another kind of loader, or of another mix"
    check_same(problem, found, now, {**now, **found})
    any_batch_size = state.is_of_all and not loader.continues_epochs
    for source, saved in zip(loader.sources, state.sources, strict=True):
        source.check_state(saved, state.segments, any_batch_size=any_batch_size)
    is_same = state.num_shards == num_shards
    if state.is_begun or is_same or loader.continues_epochs:
        loader.check_place(state)
        try:
            use_settings(loader, state)
        except MemoryLimitError:
            if is_same:
                raise


def continues(loader: BatchSource, state: State, own: State) -> bool:
    """Whether the position of `own` continues the plans of a state."""
    of_all = (own.ranks, own.workers) == (state.ranks, state.workers)
    return of_all and _has_batches_of(loader, state)


def use_settings(loader: BatchSource, state: State) -> None:
    """Use the settings of a state for its number of shards, unless its batch size differs.

    Raises `MemoryLimitError` with the smallest sufficient limit; all settings then stay unchanged.
    """
    if _has_batches_of(loader, state):
        pairs = zip(loader.sources, state.sources, strict=True)
        found = [(one, one.memory_plans_of(saved, state)) for one, saved in pairs]
        for source, plans in found:
            source.planner.keep(plans)


def _has_batches_of(loader: BatchSource, state: State) -> bool:
    """Whether a state counts batches of the loader's size."""
    sizes = [source.planner.settings.batch_size for source in loader.sources]
    return sizes == [source.settings.batch_size for source in state.sources]
