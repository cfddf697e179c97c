"""`view_quality`: the table of `doctor --quality` as curves over the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from seqrecord.errors import SchemaError
from seqrecord.viewer.view import DEFAULT_CLIP_LEN, import_matplotlib, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def view_quality(path: str | PathLike[str], columns: Sequence[str] | None = None) -> Figure:
    """Plot columns of a quality table, a row each, over the ranks of the episodes.

    Args:
        path: Parquet file with columns `episode`, `rank` and numbers.
        columns: names of the plotted columns. Default: all with a number.

    Raises `SchemaError` for an unknown column, or if the file is no such table.
    """
    import_matplotlib()
    import pyarrow as pa
    import pyarrow.parquet as pq  # here, since it takes long to import

    from seqrecord.viewer.sheet import Strip, draw_sheet

    try:
        table = pq.read_table(path).sort_by("rank")
        keys = table["episode"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise SchemaError(f"not a table of doctor --quality: {error}", file=str(path)) from error
    numbers = {
        field.name: np.asarray(table[field.name].to_numpy(), np.float64)
        for field in table.schema
        if field.type in (pa.int64(), pa.float64()) and field.name != "rank"
    }
    known = [name for name, values in numbers.items() if np.isfinite(values).any()]
    unknown = [name for name in columns or () if name not in known]
    if unknown or not known:
        raise SchemaError("no such column", expected=", ".join(known), got=", ".join(unknown))
    shown = spread(len(keys), DEFAULT_CLIP_LEN)
    strips = {name: Strip([*numbers[name]], name) for name in columns or known}
    strips["episode"] = Strip([keys[i] for i in shown], "episode")
    return draw_sheet(
        strips,
        numbers=range(1, len(keys) + 1),
        shown=[i + 1 for i in shown],
        title=str(path),
        subtitle=f"{len(keys):,} episodes, the most deviating first",
        axis="by rank",
    )
