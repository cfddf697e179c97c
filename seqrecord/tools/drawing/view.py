"""view: a clip as one figure, features in rows and time in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.tables import ClipSpec
from seqrecord.errors import ClipError, SchemaError
from seqrecord.indexing.opening import opened
from seqrecord.reading.dataset import (
    Dataset,
    DatasetLike,
    Episode,
    refuse_ignored,
)
from seqrecord.reading.episode import values_in_order
from seqrecord.tools.drawing.kinds import kind_of, kind_of_frames
from seqrecord.tools.drawing.picture_files import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DEFAULT_CLIP_LEN", "view"]

Frames = Sequence["npt.NDArray[Any] | None"]

DEFAULT_CLIP_LEN = 16


def view(
    data: DatasetLike | Episode | Mapping[str, Any],
    episode: str | None = None,
    *,
    start: int | None = None,
    clip_len: int | None = None,
    dilation: int = 1,
    features: Sequence[str] | None = None,
    max_columns: int = DEFAULT_CLIP_LEN,
    storage_options: Mapping[str, Any] | None = None,
) -> Figure:
    """A clip as a matplotlib figure, which a notebook shows; `figure.savefig` writes it to a file.

    Each feature has a row. Depth (`depth…`) is shown in a ramp of colours, near bright, with its
    scale in metres; flow [H, W, 2] in the Middlebury wheel; masks and segmentations (`mask…`,
    `seg…`, `label…`) in a palette; RGB, RGBA and 8-bit grey as they are; other [H, W] in a ramp;
    vectors and scalars as curves; of anything else a line says the range. Scales are the same for
    all frames; a percent of outliers at either end is clipped, and what is not a number is grey.
    Where a frame lacks a feature its place says so. Axes have their feature's name as label.

    Args:
        data: path or URL of a dataset, an open dataset, one of its episodes, or a clip as the
            loaders give it: feature name to frames [N, …], or to a list in which `None` is a
            missing frame; its `episode` and `start` become the heading.
        episode: key of the dataset's episode, by default the first.
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
    require_matplotlib()
    if max_columns < 1:
        raise ClipError("no columns", expected="max_columns of at least 1", got=max_columns)
    if isinstance(data, Mapping):
        refuse_ignored(
            "a clip", episode=episode, clip_len=clip_len, storage_options=storage_options
        )
        return _view_clip(data, start, dilation, features, max_columns)
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
    frames = {}
    for name, feature in episode.features.select(features).items():
        # A curve costs nothing and shows all of the clip.
        is_curve = kind_of(name, feature.dtype, feature.shape) == "curves"
        frames[name] = list(values_in_order(episode, name, numbers if is_curve else columns))
    return _draw(frames, numbers, columns, episode.key, f" of {len(episode)}")


def _numbers(episode: Episode, start: int, clip_len: int | None, dilation: int) -> range:
    """The numbers of the clip's frames."""
    num_frames = len(episode)
    if not 0 <= start < num_frames:
        raise ClipError(
            "a clip outside its episode",
            episode=episode.key,
            expected=f"a start of 0 to {num_frames - 1}",
            got=start,
        )
    room = (num_frames - 1 - start) // max(dilation, 1) + 1
    length = min(DEFAULT_CLIP_LEN, room) if clip_len is None else clip_len
    spec = ClipSpec(length, dilation=dilation)
    if spec.length > room:
        raise ClipError(
            "a clip longer than what is left of its episode",
            episode=episode.key,
            expected=f"a start of at most {max(0, num_frames - spec.span)} and at most "
            f"{room} frames from {start}",
            got=f"{spec.length} frames from {start}, {spec.dilation} apart",
        )
    return range(start, start + spec.span, spec.dilation)


def _view_clip(
    clip: Mapping[str, Any],
    start: int | None,
    dilation: int,
    features: Sequence[str] | None,
    max_columns: int,
) -> Figure:
    key = clip.get("episode", "")
    if not isinstance(key, str):
        raise ClipError(
            "more than one clip", expected="one of a batch: {name: values[0], …}", got="a batch"
        )
    whole = {k: _frames(k, clip[k]) for k in clip if k not in ("episode", "start")}
    if not whole:
        raise ClipError("a clip without features", expected="feature name to frames", got=str(clip))
    unknown = [name for name in features or () if name not in whole]
    if unknown:
        expected = f"some of {', '.join(whole)}"
        raise SchemaError("no such feature", expected=expected, got=", ".join(unknown))
    every = list(whole) if features is None else features
    length = max(len(whole[name]) for name in every)
    first = int(clip.get("start", 0)) if start is None else start
    numbers = range(first, first + ClipSpec(length, dilation=dilation).span, dilation)
    columns = _spread(length, max_columns)
    frames: dict[str, Frames] = {}
    for name in every:
        values = [*whole[name], *[None] * (length - len(whole[name]))]
        known = [value for value in values if value is not None]
        is_curve = kind_of_frames(name, known) == "curves"
        frames[name] = values if is_curve else [values[i] for i in columns]
    return _draw(frames, numbers, [numbers[i] for i in columns], key, "")


def _frames(name: str, values: Any) -> Frames:
    """A clip's frames of one feature, from an array, a tensor of any device, or a list of them."""
    if isinstance(values, (list, tuple)):
        return [None if value is None else _array(name, value) for value in values]
    array = _array(name, values)
    if not array.ndim:
        raise ClipError("not frames", feature=name, expected="an array [frames, …]", got=str(array))
    return list(array)


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor: torch need not be imported to see that
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ClipError(f"not an array: {error}", feature=name, got=type(value).__name__) from error


def _draw(
    frames: Mapping[str, Frames],
    numbers: range,
    columns: Sequence[int],
    title: str,
    of_how_many: str,
) -> Figure:
    from seqrecord.tools.drawing.sheet import draw_sheet  # imports matplotlib

    apart = f", {numbers.step} apart" if numbers.step > 1 else ""
    which = f"frames {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"frame {numbers[0]}"
    return draw_sheet(
        frames, numbers=numbers, shown=columns, title=title, subtitle=f"{which}{of_how_many}{apart}"
    )


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced, the first and last among them."""
    if count <= most:
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, max(most, 1)).round()]
