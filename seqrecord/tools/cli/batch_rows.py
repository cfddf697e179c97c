"""`seqrecord info PATH --state FILE --batch N`: the rows of a run's batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from seqrecord.errors import SeqRecordError, StateError
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.text import repr_of, table_lines
from seqrecord.tools.cli.terminal import echo_json

if TYPE_CHECKING:
    from seqrecord.loader.mixing.mix import SeqRecordMix
    from seqrecord.loader.pipes.loaders import EpochStream, SeqRecordIterableDataset
    from seqrecord.loader.pipes.states import State
    from seqrecord.store.reading.dataset import Dataset

_FOR_ROWS: dict[str, Any] = {"memory_limit": 1 << 50, "rank": (0, 1), "normalization": "stored"}
"""Arguments that matter for frames alone, of which none is read."""

_IN_PYTHON = (
    "in Python a loader with the run's arguments: loader.load_state_dict(state); "
    "loader.rows(epoch, batch, rank=…)"
)
_MAX_CELL = 40  # characters


def show_rows(
    path: str,
    file: str,
    which: Mapping[str, Any],
    open_options: Mapping[str, Any],
    samples: str | None,
    split: str | None,
    *,
    is_mix: bool,
    as_json: bool,
) -> None:
    """Print `rows` of a loader with the arguments of a state in a JSON file, loaded with it."""
    # Imported late: torch takes seconds.
    from seqrecord.loader.pipes.states import State

    state = State.parse(_saved_state(_read(file), file))
    numbers = {**which}
    for name, default in (("epoch", state.epoch), ("rank", 0)):
        if numbers[name] is None:
            numbers[name] = default
    with ExitStack() as opened:
        dataset = None if is_mix else opened.enter_context(open_dataset(path, **open_options))
        loader: EpochStream
        try:
            if dataset is None:
                loader = _mix(path, state, split)
            else:
                loader = _loader(dataset, state, samples, split)
            loader.load_state_dict(state.to_json())
        except SeqRecordError as error:
            expected = "" if error.expected is None else f"{error.expected}; or "
            error.expected = f"{expected}{_IN_PYTHON}"
            raise
        rows = loader.rows(**numbers)
    values = {name: _plain(value) for name, value in rows.items()}
    if as_json:
        echo_json({**numbers, "rows": values})
        return
    click.echo(_title(numbers, state))
    for line in _lines(values):
        click.echo(f"  {line}")


def _loader(
    dataset: Dataset, state: State, samples: str | None, split: str | None
) -> SeqRecordIterableDataset:
    """A loader of a dataset with those arguments of the run that its state has as values."""
    from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset
    from seqrecord.loader.pipes.options import EngineOptions

    if state.shared_arguments:
        raise StateError(
            "the state is one of a mix",
            file=dataset.url,
            expected="the mix file of the run in place of the dataset",
            got=f"a state of {len(state.sources)} sources",
        )
    [source] = state.sources
    request, settings = source.request, source.settings
    for name, remedy in (("windows", None), ("samples", "--samples of the run")):
        if request.get(name) and (remedy is None or samples is None):
            raise StateError(
                f"the state does not have the {name} of the run", file=dataset.url, expected=remedy
            )
    arguments = {
        "clip_len": _clip_len(request),
        **{name: request.get(name) for name in ("stride", "dilation", "pad", "features")},
        "samples": None if samples is None else _samples(samples),
        "split": split,
        "order": settings.order,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        "batch_size": _batch_size(request, settings.batch_size),
        "last_batch": settings.last_batch,
    }
    return SeqRecordIterableDataset(
        dataset,
        **{name: value for name, value in arguments.items() if value is not None},
        engine=EngineOptions(shuffle_buffer=request.get("shuffle_buffer")),
        **_FOR_ROWS,
    )


def _samples(text: str) -> Any:
    """The argument `samples` of a text as in mix files."""
    from seqrecord.recipes.values import python_value
    from seqrecord.recipes.yaml_file import yaml_value

    return python_value("samples", yaml_value(text))


def _mix(path: str, state: State, split: str | None) -> SeqRecordMix:
    """The mix of a file with the arguments of a state."""
    from seqrecord.loader.mixing.mix import SeqRecordMix
    from seqrecord.recipes.mix_file import load_mix

    if not (shared := state.shared_arguments):
        raise StateError(
            "the state is not one of a mix",
            expected="the dataset of the run in place of the mix file",
            got="a state of one dataset",
        )
    size = _batch_size(shared, shared.get("batch_size"))
    overrides = {"seed": shared.get("seed"), "batch_size": size, **_FOR_ROWS}
    fallbacks = {"clip_len": _clip_len(state.sources[0].request)}
    mix: SeqRecordMix = load_mix(SeqRecordMix, path, split, overrides, fallbacks)
    return mix


def _clip_len(request: Mapping[str, Any]) -> Any:
    """The argument `clip_len` of a request, which JSON has as a list if it is drawn."""
    clip_len = request.get("clip_len")
    return tuple(clip_len) if isinstance(clip_len, list) else clip_len


def _batch_size(request: Mapping[str, Any], size: Any) -> Any:
    """The argument `batch_size` of a request whose plans have batches of at most `size` clips."""
    from seqrecord.loader.pipes.option_values import Budget

    if (budget := request.get("budget")) is not None:
        return Budget(**budget)
    frames = request.get("frames_per_batch")
    return size if frames is None else Budget(frames)


def _saved_state(saved: Any, file: str) -> Any:
    """The loader's state in a checkpoint's JSON: itself, or the only one among its values."""
    values = saved.values() if isinstance(saved, Mapping) and "sources" not in saved else [saved]
    states = [value for value in values if isinstance(value, Mapping) and "sources" in value]
    if len(states) != 1:
        raise StateError(
            f"the file has {'several states' if states else 'no state'} of a loader",
            file=file,
            expected='json.dump(loader.state_dict(), file), or {"loader": loader.state_dict(), …}',
            got=repr_of(saved, 100),
        )
    return states[0]


def _read(file: str) -> Any:
    try:
        return json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        expected = "JSON: json.dump(loader.state_dict(), file)"
        raise StateError(
            "cannot read the state", file=file, expected=expected, got=str(error)
        ) from error


def _plain(value: Any) -> Any:
    """Values for JSON: tensors and arrays as lists."""
    return value if isinstance(value, (list, str, int)) else np.asarray(value).tolist()


def _title(numbers: Mapping[str, Any], state: State) -> str:
    segment = numbers["segment"]
    part = "" if segment is None else f" of segment {segment}"
    ranks = state.ranks if segment is None or segment >= len(state.segments) else None
    ranks = state.segments[segment].ranks if ranks is None else ranks
    place = f"batch {numbers['batch']}{part} of rank {numbers['rank']} of {ranks}"
    return f"epoch {numbers['epoch']}, {place}"


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    """A row for each clip; long values are shortened."""
    columns = {
        name: value if isinstance(value, list) else [value] for name, value in values.items()
    }
    cells = [[_cell(value) for value in column] for column in columns.values()]
    rows = [("slot", *columns), *zip(map(str, range(len(cells[0]))), *cells, strict=True)]
    yield from table_lines(rows, num_left=len(rows[0]))


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else repr_of(value, _MAX_CELL)
