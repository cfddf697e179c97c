"""view: a clip as one figure, features in rows and time in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.tables import ClipSpec
from seqrecord.errors import ClipError, SchemaError
from seqrecord.indexing.opening import opened
from seqrecord.lazy import import_extra
from seqrecord.reading.dataset import Dataset, DatasetLike, refuse_ignored
from seqrecord.reading.episode import Episode, values_in_order
from seqrecord.text import repr_of
from seqrecord.units import is_integer
from seqrecord.viewer.kinds import kind_of, kind_of_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqrecord.viewer.sheet import Frames

DEFAULT_CLIP_LEN = 16
_OF_CLIPS = ("crop", "intrinsics")  # arrays that a loader tells of a whole clip
_SAID = 40  # characters of what is told of a clip


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
    """A clip as a matplotlib figure, which a notebook shows; `figure.savefig` writes it to a file.

    Each feature has a row. Depth (`depth…`) is shown in a ramp of colours, near bright; flow
    [H, W, 2] in the Middlebury wheel; masks and segmentations (`mask…`, `seg…`, `label…`) in a
    palette; RGB, RGBA and 8-bit grey as they are; other [H, W] in a ramp; scalars, vectors and
    matrices of up to 64 numbers as curves; rows [n, C] of an IMU or of audio (`imu…`, `audio…`) as
    curves with n points a frame; texts below their frames; of anything else a line says the range.
    What a feature is comes from its kind in the schema, or else from its name; units are the
    schema's. Scales are the same for all frames; a percent of outliers at either end is clipped,
    and what is not a number is grey. Where a frame lacks a feature its place says so. Axes have
    their feature's name as label.

    Args:
        data: path or URL of a dataset, an open dataset, one of its episodes, or a clip as the
            loaders give it: feature name to frames [N, …], or to a list in which `None` is a
            missing frame; its `episode` and `start`, and what else is told of it, become the
            heading. Or a batch of such clips.
        episode: key of the dataset's episode, by default the first.
        row: number of the batch's clip.
        start: number of the clip's first frame; by default 0, or what the clip says.
        clip_len: frames in the clip; by default 16, or as many as the episode has from `start`.
        dilation: frames from one to the next.
        features: names of the features, in this order; all by default.
        max_columns: frames shown, evenly spaced; curves have all frames of the clip.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `MissingPackageError` without matplotlib, `ClipError` for an episode or a clip that is
    not there and for arguments that `data` excludes, `SchemaError` for an unknown feature,
    and what `seqrecord.open` raises.
    """
    said = "pictures are drawn by matplotlib, the extra `view`: pip install matplotlib"
    import_extra("matplotlib", said)
    if max_columns < 1:
        raise ClipError("no columns", expected="max_columns of at least 1", got=max_columns)
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
    columns = [numbers[i] for i in _spread(len(numbers), max_columns)]
    strips = {}
    for name, feature in episode.features.select(features).items():
        said = feature.kind or name
        # A curve costs nothing and shows all of the clip.
        is_curve = kind_of(said, feature.dtype, feature.shape) in ("curves", "samples")
        frames = list(values_in_order(episode, name, numbers if is_curve else columns))
        strips[name] = (frames, said, feature.unit)
    return _draw(strips, numbers, columns, episode.key, f" of {len(episode)}")


def _numbers(episode: Episode, start: int, clip_len: int | None, dilation: int) -> range:
    """The numbers of the clip's frames."""
    room = (len(episode) - 1 - start) // max(dilation, 1) + 1
    length = max(1, min(DEFAULT_CLIP_LEN, room)) if clip_len is None else clip_len
    spec = ClipSpec(length, dilation=dilation)
    if start < 0 or length > room:
        raise ClipError(
            "a clip outside its episode",
            episode=episode.key,
            expected=f"frames from 0 to {len(episode) - 1}",
            got=f"frames from {start} to {start + spec.span - 1}",
        )
    return range(start, start + spec.span, spec.dilation)


def _clip_of(data: Mapping[str, Any], row: int | None) -> Mapping[str, Any]:
    """A clip as it is, or this row of a batch."""
    keys = data.get("episode")
    if isinstance(keys, str):
        refuse_ignored("a single clip", row=row)
    if row is None and (keys is None or isinstance(keys, str)):
        return data
    count = min(map(_length, data.values()), default=0) if keys is None else len(keys)
    if row is None or not (is_integer(row) and 0 <= row < count):
        raise ClipError(
            "more than one clip" if row is None else "no such row of a batch",
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
    told = {k: clip[k] for k in clip if k not in ("episode", "start")}
    whole = {name: frames for name in told if (frames := _frames(name, told[name])) is not None}
    if not whole:
        raise ClipError("a clip without features", expected="feature name to frames", got=str(clip))
    unknown = [name for name in features or () if name not in whole]
    if unknown:
        expected = f"some of {', '.join(whole)}"
        raise SchemaError("no such feature", expected=expected, got=", ".join(unknown))
    every = list(whole) if features is None else features
    length = max(len(whole[name]) for name in every)
    first = int(clip.get("start", 0)) if start is None else start
    step = int(told.get("dilation", dilation))
    numbers = range(first, first + ClipSpec(length, dilation=step).span, step)
    columns = _spread(length, max_columns)
    strips: dict[str, tuple[Frames, str, None]] = {}
    for name in every:
        values = [*whole[name], *[None] * (length - len(whole[name]))]
        known = [value for value in values if value is not None]
        is_curve = kind_of_frames(name, known) in ("curves", "samples")
        strips[name] = (values if is_curve else [values[i] for i in columns], name, None)
    said = [f", {name}: {_value_text(told[name])}" for name in told if name not in whole]
    return _draw(strips, numbers, [numbers[i] for i in columns], clip.get("episode", ""), "", said)


def _value_text(value: Any) -> str:
    """What is told of a clip, as text."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value[:_SAID] if isinstance(value, str) else repr_of(value, _SAID)


def _frames(name: str, values: Any) -> Frames | None:
    """A clip's frames of one feature, from an array, a tensor of any device, or a list of them;
    `None` for what is told of the whole clip."""
    if getattr(values, "is_nested", False):
        values = list(values.unbind())
    if isinstance(values, (list, tuple)):
        whole = (type(None), str, bytes)
        return [value if isinstance(value, whole) else _array(name, value) for value in values]
    if values is None or isinstance(values, (str, bytes, Mapping)):
        return None
    array = _array(name, values)
    if not array.ndim or (array.ndim == 1 and name in _OF_CLIPS):
        return None
    return list(array)


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor: torch need not be imported to see that
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ClipError(f"not an array: {error}", feature=name, got=type(value).__name__) from error


def _draw(
    strips: Mapping[str, tuple[Frames, str, str | None]],
    numbers: range,
    columns: Sequence[int],
    title: str,
    of_how_many: str,
    said: Sequence[str] = (),
) -> Figure:
    from seqrecord.viewer.sheet import Strip, draw_sheet  # imports matplotlib

    apart = f", {numbers.step} apart" if numbers.step > 1 else ""
    which = f"frames {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"frame {numbers[0]}"
    return draw_sheet(
        {name: Strip(*strip) for name, strip in strips.items()},
        numbers=numbers,
        shown=columns,
        title=title,
        subtitle=f"{which}{of_how_many}{apart}{''.join(said)}",
    )


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced, the first and last among them."""
    if count <= most:
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, max(most, 1)).round()]
