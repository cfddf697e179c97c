"""Built-in functions of samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.samples import OF_CLIPS, Samples
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.sampling.random_order import phase_of_epoch, uniform
from seqrecord.loader.sampling.sample_functions import (
    BuiltIn,
    SampleFunction,
    SampleRandom,
    between,
    changes_rows,
    checked,
)
from seqrecord.store.clip_spec import MAX_SETTING
from seqrecord.store.text import repr_of
from seqrecord.store.units import (
    check,
    check_flag,
    check_integer,
    is_number,
    is_probability,
    is_word,
)

_GOALS = ("uniform", "geometric")
_ROWS = 1 << 20  # of which values are computed at once
_RESERVED = ("episode", "start", "frames", "repeat", *OF_CLIPS)


@dataclass(frozen=True)
class PerEpisode:
    """A function that is called for the samples of each episode; see `per_episode`."""

    function: SampleFunction
    needs_all_rows = False

    def __call__(self, samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
        clips, key = samples.clips, rng.key()
        episode, _ = samples.episodes.stored_frames(clips.locate(clips.offsets))
        edges = np.flatnonzero(np.diff(episode, prepend=-1, append=-1))
        columns: dict[str, list[Any]] = {}
        runs, is_changed = list[ClipTable](), False
        for begin, end in pairwise(edges.tolist()):
            part = samples.of_runs(begin, end)
            # The seed is that of all epochs, because `every` rotates over them.
            numbers = SampleRandom(rng.seed, epoch, key + begin)
            result = checked(self.function(part, epoch, numbers), part)
            is_changed |= changes_rows(part, result)
            part_runs = _with_stride_of(clips, result.clips)
            first_row = clips.first_sample[begin]
            runs.append(replace(part_runs, samples=part_runs.first_sample + first_row))
            for name, column in result.columns.items():
                if column is not part.columns.get(name):
                    columns.setdefault(name, []).append(result[name])
        names = ("episode", "first_start", "count", "first_sample")
        if is_changed:
            joined = (np.concatenate([getattr(run, name) for run in runs]) for name in names)
            episode, first_start, count, first_sample = joined
            clips = replace(
                clips, episode=episode, first_start=first_start, count=count, samples=first_sample
            )
            samples = replace(samples, clips=clips)
        return samples.with_columns(**{n: np.concatenate(v) for n, v in columns.items()})


def _with_stride_of(table: ClipTable, clips: ClipTable) -> ClipTable:
    """Clips that `every` selected from a part of a table, as runs of the table.

    Episodes may have other strides and phases, and a table has one: these clips are single runs.
    """
    if (clips.spec, clips.sample_step) == (table.spec, table.sample_step):
        return clips
    keys = clips.locate(np.arange(len(clips)))
    return table.with_runs(keys.episode, keys.start, np.ones_like(keys.start), keys.sample)


def per_episode(function: SampleFunction) -> SampleFunction:
    """Call a function for the samples of each episode, one after the other.

    A function of one's own receives at most 20,000,000 rows at once. Each call has other random
    numbers, and adds the same columns.

    Example:
        def early(samples, epoch, rng):
            return samples.take(range(min(2, len(samples))))

        two = seqrecord.samples.per_episode(early)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=two, batch_size=2)

    Raises `ClipError` for no function, and for `dilate`, `reverse` and `subset`, which change
    frames of clips.
    """
    argument: Any = function
    if not callable(argument):
        expected, got = "a function of an episode's table", repr_of(argument, 100)
        raise ClipError("per_episode has no function", expected=expected, got=got)
    if isinstance(function, BuiltIn) and function.name in ("dilate", "reverse", "subset"):
        problem = "per_episode has a function that changes frames of clips"
        expected = f"{function.name}(…) by itself in the list of samples"
        raise ClipError(problem, expected=expected, got=repr(function))
    if isinstance(function, BuiltIn) and function.name == "every" and not function.is_random:
        return function  # the same in each episode, and its table keeps its few runs
    return PerEpisode(function)


# ---- rows


def every(n: int, *, rotate: bool = False) -> BuiltIn:
    """Starts that are multiples of `n` only; with `rotate`, another remainder in each epoch.

    `n` epochs have each remainder once, in an order drawn from the seed; remainders without a
    sample are skipped. Epochs then differ in length by a few samples.

    Example:
        every_fourth = seqrecord.samples.every(4, rotate=True)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=every_fourth, batch_size=2)
    """
    n, rotate = _checked_frames("n of every", n, least=1), check_flag("rotate of every", rotate)
    return BuiltIn("every", {"n": n, "rotate": rotate}, _every, is_random=rotate)


def _every(samples: Samples, epoch: int, rng: SampleRandom, n: int, rotate: bool) -> Samples:
    phase, clips, spec = 0, samples.clips, samples.clips.spec
    start, count = clips.first_start, clips.count
    if samples.listed is not None:  # starts of lists are no frames
        start = samples["start"]
        count = np.ones_like(start)
    if rotate and len(samples):
        start, stride = (start - spec.phase) // spec.stride, n // gcd(n, spec.stride)
        number = phase_of_epoch(start, count, stride, epoch=epoch, seed=rng.seed)
        phase = spec.phase + number * spec.stride
    if samples.listed is not None:
        return samples.filter((start - phase) % n == 0)
    return samples.every(n, phase)


def where(condition: Callable[[Samples], Any]) -> BuiltIn:
    """The samples for which `condition(samples)` is true: bool [rows].

    Example:
        long = seqrecord.samples.where(lambda samples: samples.num_frames >= 8)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=long, batch_size=2)
    """
    argument: Any = condition
    if not callable(argument):
        got = repr_of(argument, 100)
        raise ClipError("where has no condition", expected="a function of the table", got=got)
    return BuiltIn("where", {"condition": condition}, _where, reads_columns=True)


def _where(
    samples: Samples, _epoch: int, _rng: SampleRandom, condition: Callable[[Samples], Any]
) -> Samples:
    return samples.filter(condition(samples))


def skip_first(n: int) -> BuiltIn:
    """No sample starts in the first `n` frames of an episode.

    Example:
        later = seqrecord.samples.skip_first(2)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=later, batch_size=2)
    """
    return BuiltIn("skip_first", {"n": _checked_frames("n of skip_first", n)}, _skip_first)


def _skip_first(samples: Samples, _epoch: int, _rng: SampleRandom, n: int) -> Samples:
    return _between(samples, n, 0)


def skip_last(n: int) -> BuiltIn:
    """No sample starts in the last `n` frames of an episode.

    Example:
        earlier = seqrecord.samples.skip_last(2)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=earlier, batch_size=2)
    """
    return BuiltIn("skip_last", {"n": _checked_frames("n of skip_last", n)}, _skip_last)


def _skip_last(samples: Samples, _epoch: int, _rng: SampleRandom, n: int) -> Samples:
    return _between(samples, 0, n)


def _between(samples: Samples, skipped: int, dropped: int) -> Samples:
    """The samples that do not start in the first and last frames of their episode."""
    if samples.listed is not None:
        start = samples["start"]
        return samples.filter((start >= skipped) & (start < samples.num_frames - dropped))
    clips, stride = samples.clips, samples.clips.spec.stride
    stop = samples.episodes.num_frames[clips.episode] - dropped
    begin = np.maximum(-((clips.first_start - skipped) // stride), 0)
    end = np.minimum(-((clips.first_start - stop) // stride), clips.count)
    return replace(samples, clips=clips.pieces(np.arange(len(begin)), begin, end))


def one_per_episode() -> BuiltIn:
    """One random sample of each episode, another one in each epoch.

    Example:
        one = seqrecord.samples.one_per_episode()
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=one, batch_size=2)
    """
    return BuiltIn("one_per_episode", {}, _one_per_episode, is_random=True)


def _one_per_episode(samples: Samples, _epoch: int, rng: SampleRandom) -> Samples:
    clips = samples.clips
    episode, _ = samples.episodes.stored_frames(clips.locate(clips.offsets))
    begin = clips.offsets[np.diff(episode, prepend=-1) != 0]
    end = np.append(begin[1:], len(samples))
    row = between(uniform(rng.key(), np.arange(len(begin))), begin, end)
    run = np.searchsorted(clips.offsets, row, side="right") - 1
    offset = row - clips.offsets[run]
    return replace(samples, clips=clips.pieces(run, offset, offset + 1))


def repeat_by(name: str, *, power: float = 1.0) -> BuiltIn:
    """Add the column `repeat`, in proportion to a value to the power of `power`; 1 on average.

    `name` is a column, an entry of the episodes' metadata, or a text or number of the frame
    `start`. The value of a text or flag is its number of samples: with `power=-1` each text has
    the same share.

    Example:
        balanced = seqrecord.samples.repeat_by("note", power=-1)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=balanced, batch_size=2)
    """
    name = _checked_name("repeat_by", "name", name)
    power = float(check("power of repeat_by", power, is_number(power), "a number"))
    arguments = {"name": name, "power": power}
    return BuiltIn(
        *("repeat_by", arguments, _repeat_by),
        reads_columns=True,
        feature="name",
        has_metadata=True,
    )


def _repeat_by(
    samples: Samples, _epoch: int, _rng: SampleRandom, name: str, power: float
) -> Samples:
    if name in samples.columns:
        values = samples[name]
    else:
        values = samples.metadata(name)
        if all(value is None for value in values):
            values = samples.feature(name)
    values = _values_of_rows(values, name)
    share = values
    if values.dtype.kind not in "iuf":
        counts = Counter(texts := [str(value) for value in values.tolist()])
        share = np.array([counts[text] for text in texts], np.int64)
    with np.errstate(all="ignore"):
        shares = share.astype(np.float64) ** power
        repeat = shares / shares.mean()
    is_known = np.isfinite(shares) & (shares >= 0)
    is_wrong = ~np.isfinite(repeat) if is_known.all() else ~is_known
    for row in np.flatnonzero(is_wrong)[:1].tolist():
        expected, got = f"numbers above 0 for power={power:g}", repr_of(values.tolist()[row], 100)
        raise ClipError(
            f"repeat_by has no share of {name} in row {row}", expected=expected, got=got
        )
    return samples.with_columns(repeat=repeat)


def _values_of_rows(values: Any, name: str) -> npt.NDArray[Any]:
    """A number for each row, NaN for one that is missing; or texts and flags, as objects."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf" and values.ndim == 1:
        return values
    rows = values.tolist() if isinstance(values, np.ndarray) else [*values]
    for row, value in enumerate(rows):
        if isinstance(value, (list, tuple, dict, np.ndarray)):
            raise ClipError(
                f"repeat_by has no share of {name} in row {row}",
                expected="a text, a flag or a number",
                got=repr_of(value, 100),
            )
    known = [value for value in rows if value is not None]
    if known and all(isinstance(v, Real) and not isinstance(v, bool) for v in known):
        return np.array([math.nan if value is None else value for value in rows])
    return np.array(rows, object)


def inside(feature: str) -> BuiltIn:
    """The samples whose frames, from the first to the last one, have one value of a feature.

    `feature` is a text or a number, such as a subtask. It is read once. Put it behind `dilate` and
    behind functions that add columns for `At`.

    Example:
        one_note = seqrecord.samples.inside("note")
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=one_note, batch_size=2)
    """
    feature = _checked_name("inside", "feature", feature)
    arguments = {"feature": feature}
    return BuiltIn("inside", arguments, _inside, reads_columns=True, feature="feature")


def _inside(samples: Samples, _epoch: int, _rng: SampleRandom, feature: str) -> Samples:
    episodes, masks = samples.episodes, [np.zeros(0, np.bool_)]
    for begin in range(0, len(samples), _ROWS):
        clips = samples.clips.locate(np.arange(begin, min(begin + _ROWS, len(samples))))
        ends, episode = episodes.extent(clips, samples), episodes.stored_frames(clips)[0]
        segments = (episodes.values(feature, episode, frame, segments=True) for frame in ends)
        masks.append(np.equal(*segments))
    return samples.filter(np.concatenate(masks))


# ---- columns


def dilate(*dilations: int) -> BuiltIn:
    """Draw the distance of a clip's frames for each sample, among those for which it is complete,
    and inside its segment.

    Batches have the column `dilation`, int64 [batch]. A sample is skipped only if it is incomplete
    with every value. For clips of `clip_len` frames, without `windows`.

    Example:
        faster = seqrecord.samples.dilate(1, 2)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=3, samples=faster, batch_size=2)
    """
    several = sorted(check_integer("dilation", dilation, least=1) for dilation in dilations)
    if not several or len({*several}) < len(several):
        expected, got = "different integers, such as dilate(1, 2, 4)", repr_of(dilations, 100)
        raise ClipError("dilate has no choice", expected=expected, got=got)
    return BuiltIn(
        "dilate", {"dilations": tuple(several)}, _dilate, adds_columns=True, is_random=True
    )


def _dilate(
    samples: Samples, _epoch: int, rng: SampleRandom, dilations: tuple[int, ...]
) -> Samples:
    key, are_complete = rng.key(), samples.episodes.complete(dilations)

    def dilation(clips: ClipKeys) -> IntArray:
        fits = np.stack([is_complete(clips) for is_complete in are_complete], axis=1)
        count = np.cumsum(fits, axis=1)
        place = (uniform(key, clips.sample) * count[:, -1]).astype(np.int64)
        drawn_dilation: IntArray = np.array(dilations)[np.argmax(count > place[:, None], axis=1)]
        return drawn_dilation

    return samples.computed("dilation", int, dilation)


def reverse(probability: float) -> BuiltIn:
    """The frames of a sample come in reverse order with this probability.

    Batches have the column `reversed`, bool [batch]; `start` remains the earliest frame. Only the
    order changes: flow, poses and actions keep their stored values, which describe forward motion.
    For clips of `clip_len` frames, without `windows`.

    Example:
        half = seqrecord.samples.reverse(0.5)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=half, batch_size=2)
    """
    if not is_probability(probability):
        expected, got = "a probability: 0 to 1", repr_of(probability, 100)
        raise ClipError("reverse has no probability", expected=expected, got=got)
    return BuiltIn(
        "reverse", {"probability": float(probability)}, _reverse, adds_columns=True, is_random=True
    )


def _reverse(samples: Samples, _epoch: int, rng: SampleRandom, probability: float) -> Samples:
    key = rng.key()
    return samples.computed("reverse", bool, lambda clips: uniform(key, clips.sample) < probability)


def subset(*, of: int) -> BuiltIn:
    """Draw the `clip_len` frames of a clip from `of` neighbouring frames, without replacement.

    They ascend, `dilation` apart. Batches have the column `frames`, int64 [batch, T]; `start` is
    the first of the `of` frames. A sample is skipped if any is missing. Without `windows`.

    Example:
        some = seqrecord.samples.subset(of=5)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=3, samples=some, batch_size=2)
    """
    return BuiltIn(
        "subset",
        {"of": check_integer("of", of, least=1)},
        _subset,
        adds_columns=True,
        is_random=True,
    )


def _subset(samples: Samples, _epoch: int, _rng: SampleRandom, of: int) -> Samples:  # noqa: ARG001
    return samples  # the window draws the frames


def final_goal(column: str = "goal") -> BuiltIn:
    """Add the column `goal`: the last frame of the sample's episode.

    Example:
        goal = seqrecord.samples.final_goal()
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=goal, batch_size=2)
    """
    column = _checked_column("final_goal", column)
    return BuiltIn("final_goal", {"column": column}, _final_goal, adds_columns=True)


def _final_goal(samples: Samples, _epoch: int, _rng: SampleRandom, column: str) -> Samples:
    episodes = samples.episodes
    return samples.computed(
        column, int, lambda clips: episodes.num_frames[episodes.stored_frames(clips)[0]] - 1
    )


def future_goal(kind: str = "uniform", *, discount: float = 0.99, column: str = "goal") -> BuiltIn:
    """Add the column `goal`: a random frame from the start to the end of the sample's episode.

    "uniform": each is equally likely. "geometric": a frame `d` frames after the start has a
    probability proportional to `discount ** d`.

    Example:
        goal = seqrecord.samples.future_goal("geometric", discount=0.9)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=goal, batch_size=2)
    """
    if not is_word(kind, _GOALS):
        expected = " or ".join(map(repr, _GOALS))
        raise ClipError("there is no such future_goal", expected=expected, got=repr_of(kind, 100))
    if not is_probability(discount) or discount in (0, 1):
        got = repr_of(discount, 100)
        raise ClipError("discount is out of range", expected="0 < discount < 1", got=got)
    column = _checked_column("future_goal", column)
    return BuiltIn(
        "future_goal",
        {"kind": kind, "discount": float(discount), "column": column},
        _future_goal,
        adds_columns=True,
        is_random=True,
    )


def _future_goal(
    samples: Samples, _epoch: int, rng: SampleRandom, kind: str, discount: float, column: str
) -> Samples:
    key, episodes = rng.key(), samples.episodes

    def goal(clips: ClipKeys) -> IntArray:
        episode, start = episodes.stored_frames(clips)
        share, frames = uniform(key, clips.sample), episodes.num_frames[episode] - start
        if kind == "geometric":
            ahead = np.log1p(-share * (1 - discount**frames)) / np.log(discount)
            frame: IntArray = start + np.minimum(ahead.astype(np.int64), frames - 1)
            return frame
        return between(share, start, start + frames)

    return samples.computed(column, int, goal)


def _checked_frames(name: str, n: Any, *, least: int = 0) -> int:
    return check_integer(name, n, least=least, most=MAX_SETTING - 1)


def _checked_name(function: str, argument: str, name: Any) -> str:
    is_name = isinstance(name, str) and name != ""
    return str(check(f"{argument} of {function}", name, is_name, "a name"))


def _checked_column(function: str, column: Any) -> str:
    """The name of a new column, which chooses neither rows nor frames."""
    name, expected = _checked_name(function, "column", column), f"none of {', '.join(_RESERVED)}"
    check(f"column of {function}", name, name not in _RESERVED, expected)
    return name


BUILT_INS: Mapping[str, Callable[..., BuiltIn]] = {
    one.__name__: one
    for one in (
        *(every, skip_first, skip_last, where, one_per_episode, inside, repeat_by),
        *(dilate, reverse, subset, final_goal, future_goal),
    )
}
"""By name, for files."""
