"""Loaders from saved states alone, to name the rows of a run's batches away from the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from seqrecord.errors import SeqRecordError, StateError
from seqrecord.loader.pipes.loaders import (
    EpochStream,
    SeqRecordIterableDataset,
    stay_with_state,
)
from seqrecord.loader.pipes.option_values import Budget
from seqrecord.loader.pipes.options import EngineOptions, SamplesLike
from seqrecord.loader.pipes.states import State
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import repr_of

# The settings are the state's, and no frame is read or normalized.
_FOR_ROWS: dict[str, Any] = {"memory_limit": 1 << 50, "rank": (0, 1), "normalization": "stored"}
_OFFSETS = re.compile(r"(-?\d+(,-?\d+)*|(-?\d+):(-?\d+)(:\d+)?)")
_SIZE = re.compile(r"(\w+) \[(\d+), (\d+)(.*)\]")
_IN_PYTHON = (
    "in Python a loader with the run's arguments: loader.load_state_dict(state); "
    "loader.rows(epoch, batch, rank=…)"
)


def find_state(saved: Any, file: str) -> State:
    """The loader's state in a checkpoint's JSON: itself, or the only one among its values.

    Raises `StateError` if there is none, or several.
    """
    values = saved.values() if isinstance(saved, Mapping) and "sources" not in saved else [saved]
    states = [value for value in values if isinstance(value, Mapping) and "sources" in value]
    if len(states) != 1:
        raise StateError(
            f"the file has {'several states' if states else 'no state'} of a loader",
            file=file,
            expected='json.dump(loader.state_dict(), file), or {"loader": loader.state_dict(), …}',
            got=repr_of(saved, 100),
        )
    return State.parse(states[0])


def loader_of_state(
    dataset: Dataset, state: State, samples: SamplesLike | None = None, split: str | None = None
) -> EpochStream:
    """A loader of a dataset with the settings of a state, loaded with it.

    `samples` and `split` are the run's, of which the state has hashes only. Raises `StateError`
    for a state whose settings have no text, such as windows in seconds and transforms.
    """
    if len(state.sources) != 1 or state.shared_arguments:
        raise StateError(
            "the state is one of a mix",
            file=dataset.url,
            expected="the mix file of the run in place of the dataset",
            got=f"a state of {len(state.sources)} sources",
        )
    [source] = state.sources
    request, settings = source.request, source.settings
    if samples is None and request.get("samples") is not None:
        raise _without(dataset, "samples", request["samples"], "--samples of the run, or ")
    features = [*map(str, request.get("features") or ())]
    selected = dataset.select([name for name in features if name in dataset.features])
    options: dict[str, Any] = {
        "clip_len": _clip_len(request),
        "stride": request.get("stride"),
        "dilation": request.get("dilation"),
        "pad": request.get("pad"),
        "windows": _windows(dataset, request.get("windows") or {}) or None,
        "features": features,
        "resize": _sizes(selected, request.get("shapes") or {}) or None,
        "samples": samples,
        "split": split,
        "order": settings.order,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        "batch_size": _batch_size(request, settings.batch_size),
        "last_batch": settings.last_batch,
        "engine": EngineOptions(
            shuffle_buffer=request.get("shuffle_buffer"),
            fixed_shards=bool(request.get("fixed_shards")),
        ),
    }
    given = {name: value for name, value in options.items() if value is not None}

    def make() -> EpochStream:
        return SeqRecordIterableDataset(dataset, **_FOR_ROWS, **given)

    return loaded(make, state)


def mix_of_state(make: Callable[..., EpochStream], state: State) -> EpochStream:
    """A mix of a file, loaded with a state. `make` makes it from arguments, and from defaults for
    keys that the file may lack.
    """
    shared = state.shared_arguments
    if not shared:
        raise StateError(
            "the state is not one of a mix",
            expected="the dataset of the run in place of the mix file",
            got="a state of one dataset",
        )
    size = _batch_size(shared, shared.get("batch_size"))
    arguments = {"seed": shared.get("seed"), "batch_size": size, **_FOR_ROWS}
    missing = {"clip_len": _clip_len(state.sources[0].request)}
    return loaded(lambda: make(arguments, missing), state)


def loaded(make: Callable[[], EpochStream], state: State) -> EpochStream:
    """A loader after `load_state_dict`; its errors name what helps."""
    try:
        loader = make()
        loader.load_state_dict(state.to_json())
        stay_with_state(loader)
    except SeqRecordError as error:
        expected = "" if error.expected is None else f"{error.expected}; or "
        error.expected = f"{expected}{_IN_PYTHON}"
        raise
    return loader


def _clip_len(request: Mapping[str, Any]) -> Any:
    """The argument `clip_len` of a request, as JSON has it."""
    clip_len = request.get("clip_len")
    return tuple(clip_len) if isinstance(clip_len, list) else clip_len


def _batch_size(request: Mapping[str, Any], size: Any) -> Any:
    """The argument `batch_size` of a request whose plans have batches of at most `size` clips."""
    frames, arguments = request.get("frames_per_batch"), request.get("budget")
    if isinstance(arguments, Mapping):
        return Budget(**arguments)
    return size if frames is None else Budget(frames)


def _windows(dataset: Dataset, windows: Mapping[str, Any]) -> dict[str, Any]:
    """Windows of frame offsets from their texts, such as `-1,0` and `0:16`."""
    offsets = dict[str, Any]()
    for name, text in windows.items():
        if not isinstance(text, str) or not _OFFSETS.fullmatch(text):
            raise _without(dataset, f"windows of {name}", text)
        if ":" in text:
            offsets[name] = range(*map(int, text.split(":")))
        else:
            offsets[name] = [*map(int, text.split(","))]
    return offsets


def _sizes(dataset: Dataset, shapes: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Height and width of features that the run has resized, from the texts of their shapes."""
    sizes = dict[str, tuple[int, int]]()
    for name, spec in dataset.features.items():
        stored = _SIZE.fullmatch(str(ArraySpec(spec.dtype, spec.shape, value=spec.value)))
        text = _SIZE.fullmatch(str(shapes.get(name)))
        if stored is not None and text is not None and stored[0] != text[0]:
            sizes[name] = int(text[2]), int(text[3])
    return sizes


def _without(dataset: Dataset, what: str, value: object, remedy: str = "") -> StateError:
    """The error for an argument that cannot be made from the state."""
    return StateError(
        f"the state has no {what} that can be made again",
        file=dataset.url,
        expected=f"{remedy}{_IN_PYTHON}",
        got=repr_of(value, 100),
    )
