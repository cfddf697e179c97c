"""Where an iteration begins: which part of an epoch it has, and after how many of its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from seqrecord.errors import StateError
from seqrecord.pipes.distributed import batches_of_workers, this_worker
from seqrecord.pipes.states import BatchSource, Remainder, Sharing, State
from seqrecord.pipes.worker_epochs import Start
from seqrecord.sampling import Part

__all__ = ["Place", "continues", "find_place", "is_over", "items_given", "state_at"]


@dataclass(frozen=True)
class Place:
    """Where the iteration begins that is made next, or was made last."""

    start: Start
    sharing: Sharing | None = None  # of the iteration, once it was made; so are the next two
    rest: Remainder | None = None
    batch: int = 0

    @property
    def epoch(self) -> int:
        return self.start.epoch


def find_place(
    loader: BatchSource[Any],
    loaded: State | None,
    start: Start,
    sharing: Sharing,
    *,
    is_told: bool = False,
) -> Place:
    """The place of an iteration that shares the epoch so; `loaded` is the state loaded last.

    Inside an epoch worker 0 goes on with the part of the worker that is next, as a DataLoader asks
    it first, and so on. One that `is_told` has a state of its own, by a StatefulDataLoader.

    Raises `StateError` where other parts have begun the epoch, of which too little is known.
    """
    rest, given, own = None, list[int](), sharing.worker
    if loaded is not None and (start.is_loaded or loader.goes_on):
        worker, rest = loaded.sharing.worker, loaded.rest
        is_own = not start.is_loaded or is_told or None in (worker, own) or worker == own
        if is_own and continues(loader, loaded, sharing):
            given = [*loaded.batches] if start.is_loaded else []
            if given and None not in (own, worker):
                sharing = replace(sharing, worker=worker)
        elif start.is_loaded or loaded.is_of_all:
            rest = loader.remainder_after(loaded)
    if start.batches and sharing.workers != this_worker()[1]:
        raise StateError(
            "a .sharding_filter() distributes the items of this pipe, so the batches of set_epoch "
            "are not those that it has given",
            expected="no .sharding_filter(): ranks and workers get parts of their own; or no "
            "batches",
        )
    if own is None or not (given or start.batches):
        return Place(start, sharing, rest)
    if len(given) == 1:
        return Place(start, sharing, rest, given[0])
    found, most = items_given(loader, start, rest, sharing.workers)
    given = given or found
    behind = [i for i, (n, m) in enumerate(zip(given, most, strict=True)) if n < min(m, max(given))]
    worker = (own + behind[0] if behind else own) % sharing.workers
    return Place(start, replace(sharing, worker=worker), rest, given[worker])


def is_over(loader: BatchSource[Any], place: Place, sharing: Sharing, part: Part) -> bool:
    """Whether a position was loaded where no batch is left, and an iteration made since.

    A loader makes one iteration when it loads a state and, if that was of an epoch that had ended,
    another one for the next epoch.
    """
    if not place.start.is_loaded or not (place.batch or place.rest) or place.sharing is None:
        return False
    if replace(place.sharing, worker=sharing.worker) != sharing:
        return False
    return bool(place.batch >= loader.plan(place.epoch, part, place.rest).num_batches)


def continues(loader: BatchSource[Any], saved: State, sharing: Sharing) -> bool:
    """Whether `sharing` goes on with the plans that a state is of."""
    of_all = replace(sharing, worker=None) == replace(saved.sharing, worker=None)
    return of_all and saved.has_batches_of(loader)


def items_given(
    loader: BatchSource[Any], start: Start, rest: Remainder | None, num_workers: int
) -> tuple[list[int], list[int]]:
    """How many items each worker of this rank has given at a start, and how many it has."""
    parts = loader.ranks.parts_of_workers(num_workers)
    most = [loader.plan(start.epoch, part, rest).num_batches for part in parts]
    size = start.batch_size
    given = batches_of_workers([-(-items // size) for items in most], start.batches)
    return [min(n * size, items) for n, items in zip(given, most, strict=True)], most


def state_at(
    loader: BatchSource[Any],
    epoch: int,
    batch: int | tuple[int, ...],
    sharing: Sharing,
    rest: Remainder | None,
) -> State:
    """The state of a loader after `batch` of an epoch, of which there is this `rest`."""
    rests = (None,) * len(loader.sources) if rest is None else rest.sources
    pairs = zip(loader.sources, rests, strict=True)
    sources = tuple(source.state(sharing.num_parts, own) for source, own in pairs)
    return State(epoch, batch, sharing, loader.asked(), sources, rest)
