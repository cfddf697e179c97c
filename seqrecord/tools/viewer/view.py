"""`view`: a clip as one figure, with features in rows and time in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SchemaError
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.lazy import import_extra
from seqrecord.store.reading.dataset import Dataset, DatasetLike, refuse_ignored
from seqrecord.store.reading.episode import Episode, values_in_order
from seqrecord.store.reading.opening import opened
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer
from seqrecord.tools.viewer.kinds import kind_of, kind_of_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqrecord.tools.viewer.sheet import Frames

DEFAULT_CLIP_LEN = 16
_CLIP_COLUMNS = ("crop", "camera_offset")  # 1-D columns of clips, not of frames
_VALUE_CHARS = 40  # of an extra column in the title


def view(
    data: DatasetLike | Episode | Mapping[str, Any],
    episode: str | None = None,
    *,
    row: int | None = None,
    start: int | None = None,
    clip_len: int | None = None,
    dilation: int = 1,
    features: Sequence[str] | None = None,
    max_columns: int = DEFAULT_CLIP_LEN,
    storage_options: Mapping[str, Any] | None = None,
) -> Figure:
    """Plot a clip as a matplotlib figure: one row per feature, one column per frame.

    Notebooks display the figure; `figure.savefig(path)` writes it to a file. The plot of a feature
    depends on its kind in the schema, or on its name if it has no kind:

    - Depth (`depth…`): color map, near is bright.
    - Optical flow [H, W, 2]: Middlebury color wheel.
    - Masks and segmentations (`mask…`, `seg…`, `label…`): color palette.
    - RGB, RGBA and 8-bit gray images: unchanged. Other [H, W]: color map.
    - Scalars, vectors and matrices of at most 64 numbers: curves.
    - Rows [n, C] of an IMU or of audio (`imu…`, `audio…`): curves with n points per frame.
    - Text: below its frame. Other values: one line with their range.

    Color scales are shared by all frames, clipped at the 1st and 99th percentile; NaN is gray.
    Frames without the feature are labeled as missing. Units come from the schema. Each `Axes` has
    the feature's name as its label.

    Args:
        data: path or URL of a dataset, an open dataset, an episode, or a clip or batch from a
            loader: a dict of arrays [N, …] or lists with `None` for missing frames. The clip's
            `episode`, `start` and other columns become the title.
        episode: key of the episode. Default: the first one.
        row: row of the clip in a batch.
        start: first frame of the clip. Default: 0, or `start` of the clip.
        clip_len: number of frames. Default: 16, or fewer at the end of the episode.
        dilation: distance between frames.
        features: names of the plotted features, in order. Default: all.
        max_columns: largest number of frames shown, evenly spaced. Curves show all frames.
        storage_options: options of the filesystem, if `data` is a URL.

    Raises `MissingPackageError` without matplotlib, `ClipError` for a missing episode or clip and
    for arguments that do not apply to `data`, `SchemaError` for an unknown feature, and the errors
    of `seqrecord.open`.

    Example:
        figure = seqrecord.view("records/", start=10, clip_len=8, features=["image", "depth"])
        figure.savefig("clip.png")
    """
    import_matplotlib()
    if max_columns < 1:
        raise ClipError("max_columns is too small", expected="1 or more", got=max_columns)
    if isinstance(data, Mapping):
        refuse_ignored(
            "a clip", episode=episode, clip_len=clip_len, storage_options=storage_options
        )
        return _view_clip(_clip_of(data, row), start, dilation, features, max_columns)
    refuse_ignored("anything but a batch", row=row)
    spec = (start or 0, clip_len, dilation)
    if isinstance(data, Episode):
        refuse_ignored("an open episode", episode=episode, storage_options=storage_options)
        return _view_episode(data, spec, features, max_columns)
    with opened(data, features=features, storage_options=storage_options) as dataset:
        return _view_episode(_find(dataset, episode), spec, features, max_columns)


def import_matplotlib() -> None:
    """Raise `MissingPackageError` without matplotlib."""
    import_extra("matplotlib", "plots require matplotlib, the extra `view`: pip install matplotlib")


def _find(dataset: Dataset, key: str | None) -> Episode:
    key = next(iter(dataset.episodes)) if key is None else key
    dataset.find_episodes([key])
    return dataset.episodes[key]


def _view_episode(
    episode: Episode,
    clip: tuple[int, int | None, int],
    features: Sequence[str] | None,
    max_columns: int,
) -> Figure:
    numbers = _numbers(episode, *clip)
    columns = [numbers[i] for i in spread(len(numbers), max_columns)]
    strips = {}
    for name, feature in episode.features.select(features).items():
        form = feature.value_kind.number_dtype(feature) or feature.dtype, feature.shape
        # Curves are small: they show all frames of the clip.
        is_curve = kind_of(name, *form, feature.kind) in ("curves", "samples")
        frames = list(values_in_order(episode, name, numbers if is_curve else columns))
        strips[name] = (frames, feature.kind, feature.unit)
    return _draw(strips, numbers, columns, episode.key, f" of {len(episode)}")


def _numbers(episode: Episode, start: int, clip_len: int | None, dilation: int) -> range:
    """Frame numbers of the clip."""
    room = (len(episode) - 1 - start) // max(dilation, 1) + 1
    length = max(1, min(DEFAULT_CLIP_LEN, room)) if clip_len is None else clip_len
    spec = ClipSpec(length, dilation=dilation)
    if start < 0 or length > room:
        raise ClipError(
            "the clip extends beyond its episode",
            episode=episode.key,
            expected=f"frames from 0 to {len(episode) - 1}",
            got=f"frames from {start} to {start + spec.span - 1}",
        )
    return range(start, start + spec.span, spec.dilation)


def _clip_of(data: Mapping[str, Any], row: int | None) -> Mapping[str, Any]:
    """Return the clip, or a row of a batch."""
    keys = data.get("episode")
    if isinstance(keys, str):
        refuse_ignored("a single clip", row=row)
    if row is None and (keys is None or isinstance(keys, str)):
        return data
    count = min(map(_length, data.values()), default=0) if keys is None else len(keys)
    if row is None or not (is_integer(row) and 0 <= row < count):
        raise ClipError(
            "a batch requires row=" if row is None else "no such row in the batch",
            expected=f"row=0 to row={count - 1}",
            got="a batch" if row is None else repr_of(row),
        )
    return {name: _row_of(values, row, count) for name, values in data.items()}


def _length(values: Any) -> int:
    return len(values) if hasattr(values, "__len__") else 0


def _row_of(values: Any, row: int, count: int) -> Any:
    if getattr(values, "is_nested", False):  # [count * frames, ?, …]
        frames = values.unbind()
        length = len(frames) // count
        return list(frames[row * length : (row + 1) * length])
    return values[row]


def _view_clip(
    clip: Mapping[str, Any],
    start: int | None,
    dilation: int,
    features: Sequence[str] | None,
    max_columns: int,
) -> Figure:
    columns = dict(clip)
    key, clip_start = columns.pop("episode", ""), columns.pop("start", 0)
    frames_of = {n: frames for n in columns if (frames := _frames(n, columns[n])) is not None}
    if not frames_of:
        raise ClipError(
            "the clip has no features", expected="a dict of frames by feature", got=str(clip)
        )
    plotted = list(frames_of) if features is None else features
    if unknown := [*filterfalse(frames_of.__contains__, plotted)]:
        expected = f"some of {', '.join(frames_of)}"
        raise SchemaError("no such feature", expected=expected, got=", ".join(unknown))
    length = max(len(frames_of[name]) for name in plotted)
    begin = int(clip_start) if start is None else start
    step = int(columns.get("dilation", dilation))
    numbers = range(begin, begin + ClipSpec(length, dilation=step).span, step)
    places = spread(length, max_columns)
    strips: dict[str, tuple[Frames, None, None]] = {}
    for name in plotted:
        frames = [*frames_of[name], *[None] * (length - len(frames_of[name]))]
        present = [frame for frame in frames if frame is not None]
        is_curve = kind_of_frames(name, present) in ("curves", "samples")
        strips[name] = (frames if is_curve else [frames[i] for i in places], None, None)
    extra_names = filterfalse(frames_of.__contains__, columns)
    extra = [f", {name}: {_value_text(columns[name])}" for name in extra_names]
    return _draw(strips, numbers, [numbers[i] for i in places], key, "", extra)


def _value_text(value: Any) -> str:
    """Format an extra column of a clip."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value[:_VALUE_CHARS] if isinstance(value, str) else repr_of(value, _VALUE_CHARS)


def _frames(name: str, values: Any) -> Frames | None:
    """Frames of one feature, from an array, a tensor or a list; `None` for extra columns."""
    if getattr(values, "is_nested", False):
        values = list(values.unbind())
    if isinstance(values, (list, tuple)):
        whole = (type(None), str, bytes)
        return [value if isinstance(value, whole) else _array(name, value) for value in values]
    if values is None or isinstance(values, (str, bytes, Mapping)):
        return None
    array = _array(name, values)
    if not array.ndim or (array.ndim == 1 and name in _CLIP_COLUMNS):
        return None
    return list(array)


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor, without importing torch
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ClipError(f"not an array: {error}", feature=name, got=type(value).__name__) from error


def _draw(
    strips: Mapping[str, tuple[Frames, str | None, str | None]],
    numbers: range,
    columns: Sequence[int],
    title: str,
    of_how_many: str,
    extra: Sequence[str] = (),
) -> Figure:
    from seqrecord.tools.viewer.sheet import Strip, draw_sheet  # imports matplotlib

    spacing = f", {numbers.step} apart" if numbers.step > 1 else ""
    frames_text = (
        f"frames {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"frame {numbers[0]}"
    )
    return draw_sheet(
        {name: Strip(*strip) for name, strip in strips.items()},
        numbers=numbers,
        shown=columns,
        title=title,
        subtitle=f"{frames_text}{of_how_many}{spacing}{''.join(extra)}",
    )


def spread(count: int, max_count: int) -> list[int]:
    """Up to `max_count` evenly spaced numbers below `count`, including the first and the last."""
    if count <= max_count:
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, max(max_count, 1)).round()]
