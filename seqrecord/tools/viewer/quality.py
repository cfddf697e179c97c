"""`view_quality`: the table of `doctor --quality` as curves over the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError, SchemaError
from seqrecord.loader.clips.sample_tables import table_columns
from seqrecord.tools.viewer.view import DEFAULT_CLIP_LEN, import_matplotlib, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def view_quality(path: str | PathLike[str], columns: Sequence[str] | None = None) -> Figure:
    """Plot columns of a quality table, a row each, over the ranks of the episodes.

    Args:
        path: Parquet file with columns `episode`, `rank` and numbers.
        columns: names of the plotted columns. Default: all with a number.

    Raises `SchemaError` for an unknown column, and `ClipError` if the file is no such table.
    """
    import_matplotlib()
    from seqrecord.tools.viewer.sheet import Strip, draw_sheet  # imports matplotlib

    table = table_columns(Path(path))
    if not {"episode", "rank"} <= table.keys():
        raise ClipError(
            "not a table of `seqrecord doctor --quality`",
            file=str(path),
            expected="columns `episode` and `rank`",
            got=", ".join(table)[:200],
        )
    order = np.argsort(np.asarray(table["rank"]))
    keys = [table["episode"][i].as_py() for i in order.tolist()]
    numbers = {
        name: np.asarray(values, np.float64)[order]
        for name, values in table.items()
        if values.type in (pa.int64(), pa.float64()) and name != "rank"
    }
    plottable = [name for name, values in numbers.items() if np.isfinite(values).any()]
    plotted = columns or plottable
    unknown_columns = [name for name in plotted if name not in plottable]
    if unknown_columns or not plottable:
        raise SchemaError(
            "no such column", expected=", ".join(plottable), got=", ".join(unknown_columns)
        )
    shown = spread(len(keys), DEFAULT_CLIP_LEN)
    strips = {name: Strip([*numbers[name]]) for name in plotted}
    strips["episode"] = Strip([keys[i] for i in shown])
    return draw_sheet(
        strips,
        numbers=range(1, len(keys) + 1),
        shown=[i + 1 for i in shown],
        title=str(path),
        subtitle=f"{len(keys):,} episodes, the most deviating first",
        axis="by rank",
    )
