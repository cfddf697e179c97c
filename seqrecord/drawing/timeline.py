"""draw_timeline: a trace as one figure, threads in rows and time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from seqrecord.drawing.files import require_matplotlib
from seqrecord.drawing.rows import timeline_of
from seqrecord.drawing.spans import read_spans
from seqrecord.errors import SeqRecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_timeline"]


def draw_timeline(
    trace: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    start: float | None = None,
    stop: float | None = None,
) -> Figure:
    """A trace as a matplotlib figure, which a notebook shows; `figure.savefig` writes it to a file.

    On top the consumer, below it when any thread was reading, decoding or copying, then each
    thread and device. Where more happens than can be shown, a column is filled in proportion:
    half full is half of that time. What a row did of the time that is shown is at its right end.

    Args:
        trace: a file in the Chrome trace format, or several that were written on one machine, such
            as those of DataLoader workers. At most 256 MiB each.
        start, stop: the part to draw, in seconds of the trace; all of it by default.

    Raises `MissingPackageError` without matplotlib, `NotFoundError`, `StorageError`, `FormatError`
    for a file that is no trace, and `SeqRecordError` for a part that is not in it.
    """
    require_matplotlib()
    files = [trace] if isinstance(trace, (str, PathLike)) else list(trace)
    spans = read_spans(files)
    timeline = timeline_of(spans, *_part(spans.seconds, start, stop))
    from seqrecord.drawing.lanes import draw_lanes  # imports matplotlib

    return draw_lanes(timeline, title=", ".join(Path(fspath(file)).name for file in files))


def _part(seconds: float, start: float | None, stop: float | None) -> tuple[float, float]:
    seconds = max(seconds, 1e-6)
    begin = 0.0 if start is None else start
    end = seconds if stop is None else min(stop, seconds)
    if not 0 <= begin < end:
        raise SeqRecordError(
            "not a part of the trace",
            expected=f"0 <= start < stop, and start below {seconds:.3f} s",
            got=f"{begin:g} s to {end if stop is None else stop:g} s",
        )
    return begin, max(end, begin + 1e-6)
