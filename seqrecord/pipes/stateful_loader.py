"""The state of a StatefulDataLoader around a loader: that of all workers of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.errors import StateError
from seqrecord.pipes.states import State, check_number
from seqrecord.text import repr_of

__all__ = ["parse_state"]

# What torchdata 0.11 calls the entries of a StatefulDataLoader's state.
_SNAPSHOT, _WORKERS, _STEPS = "_snapshot", "_worker_snapshots", "_steps_since_snapshot"
_LAST, _FINISHED = "_last_yielded_worker_id", "_iterator_finished"
_MAIN, _SAMPLER, _SAMPLED = "_main_snapshot", "_sampler_iter_state", "_sampler_iter_yielded"
_SAMPLES = "samples_yielded"
_DATASET, _FETCHER, _ENDED = "dataset_state", "fetcher_state", "fetcher_ended"
_MAX_STEPS = 1 << 31  # exclusive
_MAX_WORKERS = 1 << 20


def parse_state(saved: object) -> State:
    """A state of a loader, or of a StatefulDataLoader around one, with workers or without.

    With workers, the StatefulDataLoader's says where each was at its last snapshot, and how many
    batches it has given since. Where it has a `batch_size` of its own, each is counted with as many
    items as its sampler has drawn for a batch.

    Raises `StateError` for what is no such state, and for one from before the first snapshot of a
    StatefulDataLoader with a `batch_size` of its own and `snapshot_every_n_steps` above 1: it does
    not tell that size.
    """
    if isinstance(saved, Mapping) and _SNAPSHOT in saved:
        return _of_workers(saved)
    if isinstance(saved, Mapping) and _FETCHER in saved:
        return State.parse(saved.get(_DATASET))
    return State.parse(saved)


def _of_workers(saved: Mapping[Any, Any]) -> State:
    """That of a StatefulDataLoader with workers: each has a state of its own."""
    snapshot = _dict(saved[_SNAPSHOT])
    workers = _dict(snapshot.get(_WORKERS))
    found, ended = list[State](), list[bool]()
    for number in range(max(1, min(len(workers), _MAX_WORKERS))):
        worker = _dict(workers.get(f"worker_{number}"))
        ended.append(_dict(worker.get(_FETCHER)).get(_ENDED) is True)
        found.append(State.parse(worker.get(_DATASET)))
        expected, state = found[0].at_worker(number, len(workers)), found[-1]
        if state.sharing != expected.sharing or state.at_worker(number, len(workers)) != expected:
            raise StateError(
                f"the state of worker {number} is not of the same epoch, ranks and settings as the "
                "others'",
                expected=f"epoch {expected.epoch}, {expected.sharing}",
                got=f"epoch {state.epoch}, {state.sharing}",
            )
    if saved.get(_FINISHED) is True:  # the next iteration is of the next epoch
        return found[0].of_all((0,) * len(found)).next_epoch()
    last = _number(snapshot, _LAST, len(found), least=-1)
    steps = _number(saved, _STEPS, _MAX_STEPS)
    size = _items_of_a_step(snapshot) if steps else 0
    more = _turns(last + 1, ended, steps)
    given = (state.batches[0] + size * turns for state, turns in zip(found, more, strict=True))
    return found[0].of_all(tuple(given))


def _items_of_a_step(snapshot: Mapping[Any, Any]) -> int:
    """How many items of the dataset a batch of the StatefulDataLoader has, but for a last one.

    Its sampler has counted both. Where it has none, the loader has no `batch_size` of its own.
    """
    main = _dict(snapshot.get(_MAIN))
    if main.get(_SAMPLER) is None:
        return 1
    batches = _number(main, _SAMPLED, _MAX_STEPS)
    samples = _dict(main[_SAMPLER]).get(_SAMPLES)
    if not batches or type(samples) is not int or samples % batches or samples < batches:
        raise StateError(
            "the state of the StatefulDataLoader does not tell how many items a batch of it has, "
            "and it has given some since it asked its workers for their states",
            expected="snapshot_every_n_steps=1, the default; or batch_size=None for the "
            "StatefulDataLoader, and batch_size for the stream",
            got=f"{batches} batches of {repr_of(samples)} items",
        )
    return samples // batches


def _turns(first: int, ended: list[bool], steps: int) -> list[int]:
    """How many of the next batches each worker gives: in turn, but for those that have no more."""
    turn = [i % len(ended) for i in range(first, first + len(ended))]
    turn = [i for i in turn if not ended[i]]
    given = [0] * len(ended)
    for place, worker in enumerate(turn):
        given[worker] = len(range(place, steps, len(turn)))
    return given


def _dict(value: object) -> Mapping[Any, Any]:
    """The value, or an empty one in the place of what is no dict."""
    return value if isinstance(value, Mapping) else {}


def _number(saved: Mapping[Any, Any], name: str, limit: int, *, least: int = 0) -> int:
    return check_number(f"a StatefulDataLoader's {name}", saved.get(name), limit, least=least)
