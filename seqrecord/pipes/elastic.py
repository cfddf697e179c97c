"""States that go on with other ranks, workers or batches: made of those of a StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.errors import StateError
from seqrecord.pipes.mix_saved import MIX_VERSION, MixState
from seqrecord.pipes.states import State, check_number
from seqrecord.text import repr_of

__all__ = ["elastic_state"]

# What torchdata 0.11 calls the entries of a StatefulDataLoader's state.
_SNAPSHOT, _WORKERS, _STEPS = "_snapshot", "_worker_snapshots", "_steps_since_snapshot"
_LAST, _FINISHED = "_last_yielded_worker_id", "_iterator_finished"
_MAIN, _SAMPLER, _SAMPLED = "_main_snapshot", "_sampler_iter_state", "_sampler_iter_yielded"
_SAMPLES = "samples_yielded"
_DATASET, _FETCHER, _ENDED = "dataset_state", "fetcher_state", "fetcher_ended"
_MAX_STEPS = 1 << 31  # exclusive
_MAX_WORKERS = 1 << 20


def elastic_state(loader_state: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """A state that any number of ranks and workers go on from, with any `batch_size`.

    It is JSON, for `load_state_dict` of a `SeqRecordStream`, `SeqRecordPipe` or `SeqRecordNode`,
    before a `DataLoader` of any number of workers is made around it::

        stream.load_state_dict(seqrecord.elastic_state(saved))
        loader = StatefulDataLoader(stream, batch_size=None, num_workers=3)

    Where ranks, workers and `batch_size` are those of the state, each goes on where it was. Else
    what all of them have not given in this epoch is planned anew (see docs/ranks.md).

    Args:
        loader_state: the `state_dict()` of a torchdata `StatefulDataLoader` around a
            `SeqRecordStream`, with or without workers, or of a streaming loader itself. One rank's
            state stands for all: every rank must have been saved after equally many batches.
            With a `batch_size` of its own, the StatefulDataLoader's state says where each worker
            was at its last snapshot, and how many batches it has given since; each is counted with
            as many items as its sampler has drawn for a batch.
        others: the states of other ranks, which are checked to be at the same place.

    That of a `SeqRecordMix` is one for a mix of the same sources and `batch_size`.

    Raises `StateError` for what is no such state, for that of one worker of several, for states of
    ranks that differ, and for one from before the first snapshot of a StatefulDataLoader with a
    `batch_size` of its own and `snapshot_every_n_steps` above 1: it does not tell that size.
    """
    state = _of_rank(loader_state)
    for number, other in enumerate(others, start=1):
        found = _of_rank(other)
        if found != state:
            raise StateError(
                "the states of two ranks are not of the same place: all ranks must have given "
                "equally many batches when they are saved",
                expected=f"{_place(state)}, as the first state given",
                got=f"{_place(found)} in state {number} after it",
            )
    return state.to_json()


def _parse(saved: object) -> State | MixState:
    is_mix = isinstance(saved, Mapping) and MIX_VERSION in saved
    return MixState.parse(saved) if is_mix else State.parse(saved)


def _of_rank(saved: object) -> State | MixState:
    """The state of all workers of a rank."""
    if not isinstance(saved, Mapping):
        raise _no_state(saved)
    if _SNAPSHOT in saved:
        return _of_workers(saved)
    if _FETCHER in saved:  # of a StatefulDataLoader without workers
        if saved.get(_DATASET) is None:  # of a loader around a SeqRecordPipe, or another dataset
            raise _no_state(saved)
        return _parse(saved[_DATASET]).of_rank()
    return _parse(saved).of_rank()


def _of_workers(saved: Mapping[Any, Any]) -> State | MixState:
    """That of a StatefulDataLoader with workers: each has a state of its own."""
    snapshot = saved[_SNAPSHOT]
    workers = snapshot.get(_WORKERS) if isinstance(snapshot, Mapping) else None
    if not isinstance(workers, Mapping) or not 0 < len(workers) <= _MAX_WORKERS:
        raise _no_state(saved)
    found, ended = list[State | MixState](), list[bool]()
    for number in range(len(workers)):
        worker = workers.get(f"worker_{number}")
        if not isinstance(worker, Mapping):
            raise _no_state(saved)
        fetcher = worker.get(_FETCHER)
        ended.append(isinstance(fetcher, Mapping) and fetcher.get(_ENDED) is True)
        if worker.get(_DATASET) is None:
            raise _no_state(saved)
        found.append(_parse(worker[_DATASET]))
        _check_worker(found[-1], found[0], number, len(workers))
    if saved.get(_FINISHED) is True:  # the next iteration is of the next epoch
        batches = [0] * len(found)
        found[0] = found[0].next_epoch()
    else:
        last = _number(snapshot, _LAST, len(found), least=-1)
        steps = _number(saved, _STEPS, _MAX_STEPS)
        size = _items_of_a_step(snapshot) if steps else 0
        more = _turns(last + 1, ended, steps)
        batches = [state.batch + size * given for state, given in zip(found, more, strict=True)]
    return found[0].of_all(tuple(batches))


def _check_worker(
    state: State | MixState, first: State | MixState, number: int, count: int
) -> None:
    expected = first.at_worker(number, count)
    if state.sharing != expected.sharing or state.at_worker(number, count) != expected:
        raise StateError(
            f"the state of worker {number} is not of the same epoch, ranks and settings as the "
            "others'",
            expected=_stage(expected),
            got=_stage(state),
        )


def _items_of_a_step(snapshot: Mapping[Any, Any]) -> int:
    """How many items of the dataset a batch of the StatefulDataLoader has, but for a last one.

    Its sampler has counted both. Where it has none, the loader has no `batch_size` of its own.
    """
    main = snapshot.get(_MAIN)
    sampler = main.get(_SAMPLER) if isinstance(main, Mapping) else None
    if sampler is None:
        return 1
    assert isinstance(main, Mapping)
    batches = _number(main, _SAMPLED, _MAX_STEPS)
    samples = sampler.get(_SAMPLES) if isinstance(sampler, Mapping) else None
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


def _number(saved: Mapping[Any, Any], name: str, limit: int, *, least: int = 0) -> int:
    return check_number(f"a StatefulDataLoader's {name}", saved.get(name), limit, least=least)


def _place(state: State | MixState) -> str:
    return f"batch {', '.join(map(str, state.batches[:8]))} of {_stage(state)}"


def _stage(state: State | MixState) -> str:
    stage = 0 if isinstance(state, MixState) else len(state.stages)
    return f"epoch {state.epoch}, stage {stage}, {state.sharing}"


def _no_state(saved: object) -> StateError:
    return StateError(
        "not a state of a seqrecord loader, nor of a StatefulDataLoader around a SeqRecordStream",
        expected="what the state_dict() of one of them has returned",
        got=repr_of(saved),
    )
