"""`seqrecord info PATH --state FILE --batch N`: the rows of a run's batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from seqrecord.errors import StateError
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.text import repr_of, table_lines
from seqrecord.tools.cli.terminal import echo_json

if TYPE_CHECKING:
    from seqrecord.loader.pipes.states import State

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
    """Print the rows of a batch in the run that saved the state in a JSON file."""
    # Imported late: torch takes seconds.
    from seqrecord.loader.mixing.file import load_mix
    from seqrecord.loader.mixing.file_values import python_value
    from seqrecord.loader.mixing.mix import SeqRecordMix
    from seqrecord.loader.mixing.yaml_file import yaml_value
    from seqrecord.loader.pipes.state_loaders import find_state, loader_of_state, mix_of_state

    state = find_state(_read(file), file)
    numbers = {**which}
    for name, default in (("epoch", state.epoch), ("rank", 0)):
        if numbers[name] is None:
            numbers[name] = default
    if is_mix:
        loader = mix_of_state(partial(load_mix, SeqRecordMix, path, split), state)
        rows = loader.rows(**numbers)
    else:
        table = None if samples is None else python_value("samples", yaml_value(samples))
        with open_dataset(path, **open_options) as dataset:
            rows = loader_of_state(dataset, state, table, split).rows(**numbers)
    values = {name: _plain(value) for name, value in rows.items()}
    if as_json:
        echo_json({**numbers, "rows": values})
        return
    click.echo(_title(numbers, state))
    for line in _lines(values):
        click.echo(f"  {line}")


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
