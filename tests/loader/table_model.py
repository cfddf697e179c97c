"""Brute-force model of clips that a table or functions choose, or that are drawn for each batch.

A `TableCase` has a loader's arguments of a kind of `KINDS_OF_TABLES`: tables of starts, of
episodes, and of lists of frames, windows with anchors, functions that choose other samples in each
epoch, and a drawn `clip_len`. `table_cases` draws one, `case_of` is the model of any arguments. A
clip of a table is named by its row and start. The model loops over rows, and follows
docs/sampling.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from seqrecord import (
    At,
    Budget,
    CenterCrop,
    EngineOptions,
    FrameTransform,
    HorizontalFlip,
    RandomCrop,
)
from seqrecord.samples import (
    BuiltIn,
    SampleRandom,
    Samples,
    dilate,
    every,
    final_goal,
    future_goal,
    inside,
    one_per_episode,
    reverse,
    skip_first,
    skip_last,
    subset,
)
from tests.loader.clip_model import (
    LENGTHS,
    Case,
    Clip,
    clamped,
    episode_of,
    key_of,
    stored_frame,
)

__all__ = ["DECODED", "KINDS_OF_TABLES", "Recording", "TableCase", "case_of", "table_cases"]

KINDS_OF_TABLES = ("starts", "episodes", "frames", "anchors", "goals", "functions", "lengths")
DENSE = ("image", "action", "note", "blob")
"""Features that every frame has, beside `id`."""

TURNS = 60
"""Epochs after which the functions of `Turning` begin again: a multiple of all periods."""

DECODED: defaultdict[int, list[Clip]] = defaultdict(list)
"""Frames of each `Recording`: (episode, frame)."""


@dataclass(frozen=True)
class Recording:
    """A `frame_transform` that changes nothing, and writes each frame down under a number.

    Loaders that ended early may still decode frames, so each loader has a number of its own.
    """

    number: int = 0

    def __call__(self, frame: Mapping[str, Any]) -> Mapping[str, Any]:
        episode, number = frame["id"].tolist()
        DECODED[self.number].append((episode, number))
        return frame

    @staticmethod
    def numbered(transform: FrameTransform, number: int) -> FrameTransform:
        """The same transform under another number."""
        return replace(transform, function=Recording(number))


@dataclass(frozen=True)
class Turning:
    """A function of samples: other starts in each of `period` epochs."""

    period: int
    name = "turning"

    def __call__(self, samples: Samples, epoch: int, _rng: SampleRandom) -> Samples:
        return samples.filter((samples["start"] + epoch) % self.period != 0)

    def has(self, start: int, epoch: int) -> bool:
        return (start + epoch) % self.period != 0


@dataclass(frozen=True)
class Tagging:
    """A function of samples: a column that depends on the epoch."""

    name = "tagging"

    def __call__(self, samples: Samples, epoch: int, _rng: SampleRandom) -> Samples:
        return samples.with_columns(tag=10_000 * samples["start"] + epoch)


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def case_of(options: dict[str, Any]) -> Case:
    """The model of a loader's arguments."""
    samples = options.get("samples") or ()
    has_draws = isinstance(options.get("clip_len"), tuple) or "frame_transform" in options
    is_of_table = has_draws or any(
        is_table(one) or isinstance(one, (Turning, Tagging)) or one.name in TABLE_FUNCTIONS
        for one in samples
    )
    return TableCase(options) if is_of_table else Case(options)


TABLE_FUNCTIONS = ("one_per_episode", "inside", "skip_first", "subset", "final_goal", "future_goal")


class TableCase(Case):
    """A loader's arguments with a table, functions or draws, and the clips expected from them."""

    @cached_property
    def table(self) -> dict[str, Any] | None:
        samples = self.options.get("samples") or [None]
        return samples[0] if is_table(samples[0]) else None

    @property
    def functions(self) -> list[Any]:
        return [one for one in self.options.get("samples") or () if not is_table(one)]

    @property
    def lists_frames(self) -> bool:
        return self.table is not None and "frames" in self.table

    def row(self, number: int) -> dict[str, Any]:
        """A row of the table, by the number in its column `row`."""
        assert self.table is not None
        place = self.table["row"].index(number)
        return {name: column[place] for name, column in self.table.items()}

    @property
    def goals(self) -> BuiltIn | None:
        """The function that makes the column of anchors."""
        of_goals = (one for one in self.functions if one.name in ("final_goal", "future_goal"))
        return next(of_goals, None)

    @property
    def lengths(self) -> tuple[int, int]:
        """The least and the greatest `clip_len`."""
        length = self.options.get("clip_len", 1)
        return length if isinstance(length, tuple) else (length, length)

    @property
    def span(self) -> int:
        """The number of frames that a clip's frames are drawn from."""
        span: int = self.function("subset", "of", self.lengths[1])
        return span

    # ---- which clips an epoch has

    @cached_property
    def candidates(self) -> list[tuple[Clip, int, int]]:
        """Each clip of the table, or of the dataset, with its episode and start, as listed."""
        chosen: list[tuple[Clip, int, int]] = []
        if self.table is None:
            return [((e, s), e, s) for e, s in self.starts if self.is_complete((e, s))]
        allowed = {episode for episode, _ in self.starts}
        for number in self.table["row"]:
            row = self.row(number)
            episode = int(row["episode"].split("/")[1])
            if "frames" in row:
                starts = [min(row["frames"])]
            else:
                of_episode = range(0, LENGTHS[episode], self.stride)
                starts = [row["start"]] if "start" in row else [*of_episode]
            chosen += [((number, start), episode, start) for start in starts if episode in allowed]
        return [one for one in chosen if self.is_complete(one[0])]

    def is_complete(self, name: Clip) -> bool:
        """Whether the clip is inside its episode, and has all features."""
        return any(
            self.has_features(episode, frames)
            for episode, frames in self.variants(name)
            if frames is not None
        )

    def has_features(self, episode: int, frames: Mapping[str, Sequence[int]]) -> bool:
        return all(
            self.age(name, episode, frame) is not None
            for name, numbers in frames.items()
            for frame in numbers
        )

    def variants(self, name: Clip) -> Iterator[tuple[int, dict[str, list[int]] | None]]:
        """The episode and the greatest set of frames of each feature, for each dilation.

        `None` instead of frames outside the episode that are not padded.
        """
        episode, start = name
        row: dict[str, Any] = {}
        if self.table is not None:
            row = self.row(name[0])
            episode = int(row["episode"].split("/")[1])
        pad = self.options.get("pad")
        for dilation in (row["dilation"],) if "dilation" in row else self.dilations:
            found, is_inside = {}, True
            for feature in self.features:
                frames = self.asked(feature, episode, start, row, dilation, self.span)
                is_inside &= min(frames) >= 0 or pad in ("edge", "before")
                is_inside &= max(frames) < LENGTHS[episode] or pad in ("edge", "after")
                found[feature] = clamped(episode, frames)
            yield episode, found if is_inside else None

    def asked(
        self,
        feature: str,
        episode: int,
        start: int,
        columns: Mapping[str, Any],
        dilation: int,
        length: int,
    ) -> list[int]:
        """The requested frames of a feature; without a goal in the columns, around `start`."""
        if "frames" in columns and self.lists_frames:
            return [int(frame) for frame in columns["frames"] if frame >= 0]
        window = self.window(feature)
        if window is None:
            return [start + i * dilation for i in range(length)]
        frames: list[int] = []
        for item in [window] if isinstance(window, At) else window:
            if not isinstance(item, At):
                frames.append(start + item)
            else:
                anchor = int(columns.get(item.column, start))
                frames += [anchor + int(offset) for offset in item.offsets]  # type: ignore[union-attr]
        return frames

    @cached_property
    def clips(self) -> list[Clip]:
        """All clips that an epoch may have, in order."""
        functions = [f for f in self.functions if f.name not in ("turning", "one_per_episode")]
        every_clip = [name for name, *_ in self.filtered(functions, 0)]
        return self.in_order(every_clip)

    @property
    def remainders(self) -> set[int]:
        return {0}

    def clips_of(self, remainder: int) -> list[Clip]:
        del remainder
        return self.clips

    def filtered(self, functions: Sequence[Any], epoch: int) -> list[tuple[Clip, int, int]]:
        found = self.candidates
        for one in functions:
            if isinstance(one, Turning):
                found = [c for c in found if one.has(c[2], epoch)]
            elif one.name == "every":
                found = [c for c in found if c[2] % one.arguments["n"] == 0]
            elif one.name == "skip_first":
                found = [c for c in found if c[2] >= one.arguments["n"]]
            elif one.name == "skip_last":
                found = [c for c in found if c[2] < LENGTHS[c[1]] - one.arguments["n"]]
            elif one.name == "inside":
                found = [c for c in found if self.is_inside(c[0], one.arguments["feature"])]
            elif one.name == "one_per_episode":
                found = [*{episode: (name, episode, s) for name, episode, s in found}.values()]
        return found

    def possible(self, epoch: int) -> list[tuple[Clip, int, int]]:
        """Clips that an epoch may have, before a clip of each episode is drawn."""
        functions = [one for one in self.functions if one.name != "one_per_episode"]
        return self.filtered(functions, epoch % TURNS)

    def is_inside(self, name: Clip, feature: str) -> bool:
        """Whether the first and the last frame, and all between them, have one value."""
        ((episode, frames),) = self.variants(name)
        assert frames is not None
        numbers = [number for of_feature in frames.values() for number in of_feature]
        between = range(min(numbers), max(numbers) + 1)
        return len({stored_frame(episode, number)[feature] for number in between}) == 1

    @cached_property
    def smallest(self) -> int:
        epochs = range(TURNS) if self.is_turning else range(1)
        filtered = (self.filtered(self.functions, epoch) for epoch in epochs)
        return min(floor(sum(self.times(name) for name, *_ in found)) for found in filtered)

    @property
    def is_turning(self) -> bool:
        return any(isinstance(one, Turning) for one in self.functions)

    def times(self, name: Clip) -> float:
        """How often a clip comes in an epoch, on average."""
        times: float = 1
        if self.table is not None and "repeat" in self.table:
            times = self.row(name[0])["repeat"]
        return times

    def epoch(self, epoch: int) -> list[Clip] | None:
        names = [name for name, *_ in self.filtered(self.functions, epoch % TURNS)]
        times = [self.times(name) for name in names]
        is_drawn = any(one.name == "one_per_episode" for one in self.functions)
        if is_drawn or any(number % 1 for number in times):
            return None
        pairs = zip(names, times, strict=True)
        return self.in_order([name for name, number in pairs for _ in range(int(number))])

    def drawn_epoch(
        self, epoch: int, clips: list[Clip], drawn: Mapping[int, list[Clip]]
    ) -> list[Clip]:
        del drawn
        if any(one.name == "one_per_episode" for one in self.functions):
            episodes = {name: episode for name, episode, _ in self.possible(epoch)}
            assert sorted(episodes[name] for name in clips) == sorted({*episodes.values()})
            return self.in_order(clips)
        counts, names = Counter(clips), [name for name, *_ in self.candidates]
        assert counts.keys() <= {*names}
        total = sum(self.times(name) for name in names)
        assert floor(total + 1e-9) <= len(clips) <= ceil(total - 1e-9)
        for name in names:
            assert floor(self.times(name)) <= counts[name] <= ceil(self.times(name))
        return self.in_order(clips)

    def in_order(self, clips: Sequence[Clip]) -> list[Clip]:
        """By episode, then by start, then as listed."""
        place = {name: (e, s, i) for i, (name, e, s) in enumerate(self.candidates)}
        return sorted(clips, key=place.__getitem__)

    def numbered(self, clips: Sequence[Clip]) -> list[Clip]:
        """As listed."""
        there = {*clips}
        return [name for name, *_ in self.candidates if name in there]

    def copies(self) -> bool:
        return self.table is not None and any(one > 1 for one in self.table.get("repeat", ()))

    def full_size(self, batch: Mapping[str, Any]) -> int:
        size: Any = self.options["batch_size"]
        if not isinstance(size, Budget):
            return int(size)
        return size.rows(self.longest if self.lists_frames else len(batch["id"][0]))

    @property
    def has_costs(self) -> bool:
        """Whether batches have a budget, and clips differ in cost."""
        is_budget = isinstance(self.options.get("batch_size"), Budget)
        return is_budget and self.lists_frames and self.is_uneven

    def check_costs(self, rank: Sequence[Mapping[str, Any]]) -> None:
        """Each batch is within the budget, or has one clip; and padded to its longest list only."""
        budget: Any = self.options["batch_size"]
        pads = self.options.get("ragged") == "pad" if budget.padded is None else budget.padded
        for batch in rank:
            lengths = [flags.count(False) for flags in batch["frames_is_pad"].tolist()]
            cost = max(lengths) * len(lengths) if pads else sum(lengths)
            assert cost <= budget.size or len(lengths) == 1
            assert len(lengths) <= (budget.max_rows or len(lengths))
            assert np.shape(batch["frames"]) == (len(lengths), max(lengths))
            if self.options.get("ragged") == "pad":
                assert np.shape(batch["id"])[:2] == (len(lengths), max(lengths))
            else:
                assert np.diff(batch["cu_seqlens"]).tolist() == lengths

    def incomplete(self) -> tuple[int | None, int | None]:
        if self.table is None:
            return None, None
        row_by_row = bool({"start", "frames"} & self.table.keys())
        keys = {key_of(episode) for episode, _ in self.starts}
        rows = sum(key in keys for key in self.table["episode"])
        return rows - len(self.candidates) if row_by_row else None, None

    # ---- the content of a clip

    def check_place(self, clip: Mapping[str, Any], epoch: int | None) -> tuple[Clip, set[str]]:
        episode, start = episode_of(clip), int(clip["start"])
        number = int(clip["row"]) if self.table is not None else episode
        name = number, start
        assert name in self.clips
        if epoch is not None and self.is_turning:
            assert name in [one for one, *_ in self.possible(epoch)]
        columns = {"episode", "start", "crop", "flipped"}
        self.check_draws(clip)
        if self.table is not None:
            row = self.row(number)
            assert clip["episode"] == row["episode"]
            columns |= self.check_columns(clip, row)
        if any(isinstance(one, Tagging) for one in self.functions):
            tag = int(clip["tag"])
            assert tag // 10_000 == start
            assert epoch is None or tag % 10_000 == epoch
            columns.add("tag")
        if self.goals is not None:
            last, goal = LENGTHS[episode] - 1, int(clip["goal"])
            assert goal == last if self.goals.name == "final_goal" else start <= goal <= last
            columns.add("goal")
        if self.function("dilate", "dilations", None):
            columns.add("dilation")
        if self.function("reverse", "probability", None) is not None:
            columns.add("reversed")
        if self.function("subset", "of", None):
            columns.add("frames")
        assert columns - {"crop", "flipped"} <= set(clip)
        if self.options.get("pad") is None and not self.lists_frames:
            inside_episode = range(LENGTHS[episode])
            dilation = int(clip.get("dilation", self.dilations[0]))
            for feature in self.features:
                assert {*self.requested(feature, clip, dilation)} <= {*inside_episode}
        return name, columns

    def check_draws(self, clip: Mapping[str, Any]) -> None:
        if self.table is None or "dilation" not in self.table:
            super().check_draws(clip)

    def check_columns(self, clip: Mapping[str, Any], row: Mapping[str, Any]) -> set[str]:
        """Compare columns with the row of the table; returns their names."""
        columns = {"row"}
        for name in ("goal", "near", "weight"):
            if name in row:
                assert float(clip[name]) == row[name]
                columns.add(name)
        if "caption" in row:
            assert clip["caption"] == row["caption"]
            columns.add("caption")
        if "vector" in row:
            assert clip["vector"].tolist() == row["vector"]
            columns.add("vector")
        if "dilation" in row:
            assert int(clip["dilation"]) == row["dilation"]
            assert bool(clip["reversed"]) == row["reverse"]
            columns |= {"dilation", "reversed"}
        if "frames" in row:
            longest = len(clip["frames"]) if self.has_costs else self.longest
            padding = [-1] * (longest - len(row["frames"]))
            assert clip["frames"].tolist() == [*row["frames"], *padding]
            columns.add("frames")
            assert ("frames_is_pad" in clip) == self.is_uneven
            if self.is_uneven:
                assert clip["frames_is_pad"].tolist() == [
                    i >= len(row["frames"]) for i in range(longest)
                ]
                columns.add("frames_is_pad")
        return columns

    @cached_property
    def used_lists(self) -> list[list[int]]:
        """The lists of frames of complete clips."""
        return [self.row(name[0])["frames"] for name, *_ in self.candidates]

    @property
    def longest(self) -> int:
        return max(map(len, self.used_lists))

    @property
    def is_uneven(self) -> bool:
        return len({*map(len, self.used_lists)}) > 1

    def requested(self, name: str, clip: Mapping[str, Any], dilation: int) -> list[int]:
        episode, start = episode_of(clip), int(clip["start"])
        if self.lists_frames:
            frames = [frame for frame in clip["frames"].tolist() if frame >= 0]
            if self.is_uneven and self.options.get("ragged") == "pad":
                frames += frames[-1:] * (len(clip["id"]) - len(frames))
            return frames
        is_subset = self.function("subset", "of", None) is not None
        if not is_subset and not self.draws_lengths:
            return self.asked(name, episode, start, clip, dilation, self.span)
        length = len(clip["id"])
        assert self.lengths[0] <= length <= self.lengths[1]
        if not is_subset:
            return self.asked(name, episode, start, clip, dilation, length)
        return self.subset_of(clip, episode, range(start, start + self.span * dilation, dilation))

    def subset_of(self, clip: Mapping[str, Any], episode: int, span: range) -> list[int]:
        """The frames drawn from a span, which ascend; beyond the episode's end where padded."""
        order = slice(None, None, -1 if clip.get("reversed", False) else 1)
        frames = clip["frames"].tolist()[order]
        assert len(frames) == len(clip["id"])
        if self.options.get("pad") is not None:
            last, beyond = LENGTHS[episode] - 1, [f for f in span if f >= LENGTHS[episode]]
            is_pad = clip["id_is_pad"].tolist()[order]
            assert frames[len(frames) - sum(is_pad) :] == [last] * sum(is_pad)
            assert sum(is_pad) <= len(beyond)
            frames = frames[: len(frames) - sum(is_pad)] + beyond[: sum(is_pad)]
        assert frames == sorted({*frames})
        assert {*frames} <= {*span}
        return list(frames)

    def clips_in(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if not (self.lists_frames and self.is_uneven) or isinstance(batch["episode"], str):
            yield from super().clips_in(batch)
            return
        columns = {
            name: list(value.unbind())
            if isinstance(value, torch.Tensor) and value.is_nested
            else value
            for name, value in batch.items()
            if name != "cu_seqlens"
        }
        for i in range(len(batch["episode"])):
            yield {name: column[i] for name, column in columns.items()}

    def decoded(self, clips: Sequence[Clip]) -> tuple[set[Clip], set[Clip]]:
        """Frames that must be decoded for clips, and frames that may be: (episode, frame).

        The latter are in a chunk with a frame that is needed, and between two that are; of lists
        of frames, they are all listed frames of the episodes.
        """
        least, most = set[Clip](), set[Clip]()
        for name in clips:
            must, may = self.decoded_of(name)
            least |= must
            most |= may
        if self.lists_frames:  # ranks may share an episode
            episodes = {episode for episode, _ in least}
            listed = [
                (e, frame)
                for name, e, _ in self.candidates
                for frame in self.row(name[0])["frames"]
            ]
            return least, {(e, frame) for e, frame in listed if e in episodes}
        chunks = {(episode, chunk_of(frame)) for episode, frame in most}
        for episode in {episode for episode, _ in most}:
            frames = [frame for number, frame in most if number == episode]
            between = range(min(frames), max(frames) + 1)
            most |= {(episode, f) for f in between if (episode, chunk_of(f)) in chunks}
        return least, most

    def decoded_of(self, name: Clip) -> tuple[set[Clip], set[Clip]]:
        """Frames that a clip needs in any case, and frames that it may need.

        Around an anchor, these are all frames at which it may be.
        """
        episode, start = name
        sets = []
        for of_row, frames in self.variants(name):
            episode, start = of_row, start
            if frames is not None and self.has_features(episode, frames):
                known = [n for n in frames if self.goals is None or not has_anchor(self.window(n))]
                sets.append({(episode, f) for n in known for f in frames[n]})
        least: set[Clip] = set() if self.lengths[0] < self.span else set.intersection(*sets)
        reached = [f for n in self.features for f in self.reach(n, episode, start)]
        return least, set.union(*sets) | {(episode, f) for f in reached}

    def reach(self, name: str, episode: int, start: int) -> list[int]:
        """Frames at which a feature's anchors may be, or frames up to the greatest dilation."""
        window, frames = self.window(name), list[int]()
        if window is None:
            dilations = [*self.dilations, *(self.table or {}).get("dilation", ())]
            if len({*dilations}) > 1:
                frames = [*range(start, start + (self.span - 1) * max(dilations) + 1)]
            return clamped(episode, frames)
        items = [window] if isinstance(window, At) else window
        for item in items:
            if isinstance(item, At) and item.within is None:
                return [*range(LENGTHS[episode])]
            if isinstance(item, At):
                least, most = item.within  # type: ignore[misc]
                offsets = [int(offset) for offset in item.offsets]  # type: ignore[union-attr]
                ends = start + least + min(offsets), start + most + max(offsets)
                frames += range(ends[0], ends[1] + 1)
        return clamped(episode, frames)


def has_anchor(window: Any) -> bool:
    items = [window] if isinstance(window, At) else window or ()
    return any(isinstance(item, At) for item in items)


def chunk_of(frame: int) -> int:
    """The chunk of a frame in the dataset of `write_all`: of five frames, and cut at 14."""
    return frame // 5 if frame < 14 else 3 + (frame - 14) // 5


# ---- draws


@st.composite
def table_cases(draw: st.DrawFn, *, kinds: Sequence[str] = KINDS_OF_TABLES) -> TableCase:
    """Loader arguments without a rank."""

    def maybe(tenths: int) -> bool:
        return draw(st.integers(1, 10)) > 10 - tenths

    def choose(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def some(values: Sequence[Any], least: int, most: int) -> list[Any]:
        kinds = st.sampled_from(values)
        return draw(st.lists(kinds, min_size=least, max_size=most, unique_by=repr))

    kind = choose(*kinds)
    is_recorded = maybe(3)
    others = ("image", "action") if is_recorded else DENSE
    if not is_recorded and kind in ("starts", "episodes", "functions", "lengths"):
        others = (*others, "imu", "gps", "flow")
    features = [*some(others, 0, 4), "id"]
    options: dict[str, Any] = {
        "features": features,
        "seed": draw(st.integers(0, 99)),
        "shuffle": not maybe(2),
        "batch_size": choose(None, 1, 3, 4, 7),
        "last_batch": choose("repeat", "keep", "drop"),
    }
    if is_recorded:
        transform = FrameTransform(Recording(), deterministic=maybe(5))
        options["frame_transform"] = transform
    elif maybe(3):
        options["metadata"] = some(["task", "arm"], 1, 2)
    if "image" in features and maybe(3):
        crop = choose(RandomCrop((5, 7)), CenterCrop((12, 3)))
        options["clip_transform"] = some([crop, HorizontalFlip(0.5)], 1, 2)
    if maybe(2):
        options["episodes"] = choose("lab/*", [3, 0, 4])
    functions: list[Any] = []
    if kind == "lengths":
        least = draw(st.integers(1, 3))
        options["clip_len"] = least, least + draw(st.integers(1, 4))
        options["batch_size"] = choose(Budget(8), Budget(15), 3, 4)
        options["last_batch"] = choose("repeat", "keep")
        if maybe(5):
            functions.append(subset(of=options["clip_len"][1] + draw(st.integers(0, 3))))
    elif kind in ("starts", "episodes", "functions"):
        options["clip_len"] = draw(st.integers(1, 5))
    if kind in ("starts", "episodes", "functions", "lengths"):
        if maybe(3):
            options["pad"] = choose("edge", "before", "after")
        if maybe(4) and kind != "starts":
            functions += [dilate(*choose((1, 2), (3, 1, 2), (2,))), reverse(choose(0.0, 0.5, 1.0))]
        elif maybe(3):
            options["dilation"] = 2
    if kind in ("episodes", "functions") and maybe(4):
        options["stride"] = choose(2, 3, 5)
    table: dict[str, Any] | None = None
    if kind == "starts" or (kind == "lengths" and maybe(4)):
        table = draw(tables_of_starts(options, functions))
    elif kind == "episodes":
        table = {
            "episode": [
                key_of(e) for e in draw(st.lists(st.integers(0, 4), min_size=1, unique=True))
            ]
        }
    elif kind == "frames":
        table = draw(tables_of_lists(options))
    elif kind == "anchors":
        table = draw(tables_of_anchors(options))
    elif kind == "goals":
        functions.append(
            choose(final_goal(), future_goal(), future_goal("geometric", discount=0.8))
        )
        options["windows"] = {"id": [0, At("goal")]}
        options["pad"] = choose("edge", "after", "before")
        before = At("goal", 0 if options["pad"] == "after" else -1)
        for name in features[:-1]:
            if maybe(6):
                options["windows"][name] = choose(At("goal"), [before, 0], range(3), [0, 0])
    if table is not None:
        draw(with_columns(table, has_repeat=kind != "lengths"))
    free = kind not in ("lengths", "goals")
    is_fractional = table is not None and any(one % 1 for one in table.get("repeat", ()))
    if not is_fractional and maybe(5 if kind != "functions" else 10):
        functions += some(
            [
                Turning(choose(2, 3, 5)),
                Tagging(),
                skip_first(draw(st.integers(1, 5))),
                skip_last(draw(st.integers(1, 5))),
                every(choose(2, 3, 4)),
                *(
                    [inside("note")]
                    * ("note" in features and kind == "starts" and "pad" not in options)
                ),
                *([one_per_episode()] * free),
            ],
            1,
            3,
        )
        if table is not None and "repeat" in table:
            functions = [one for one in functions if one.name != "one_per_episode"]
    of_rows = {"one_per_episode": 1, "tagging": 2}
    functions.sort(key=lambda one: of_rows.get(one.name, 0))
    if table is not None or functions:
        options["samples"] = [*([] if table is None else [table]), *functions]
    engine: dict[str, Any] = {"num_threads": draw(st.integers(1, 3))}
    if options["shuffle"] and kind != "frames" and maybe(4):
        engine |= {"num_cursors": choose(1, 5), "shuffle_buffer": choose(1, 5, 64)}
    options["engine"] = EngineOptions(**engine)
    if maybe(2):
        options["device"] = "cpu"
        options.pop("frame_transform", None)
    if maybe(3):
        options["memory_limit"] = "least"
    case = TableCase(options)
    if case.copies() and options["last_batch"] == "repeat":
        options["last_batch"] = "keep"
    return case


@st.composite
def tables_of_starts(draw: st.DrawFn, options: dict[str, Any], functions: list[Any]) -> Any:
    """Rows inside their episode; some may lack a feature."""
    has_steps = not functions and "dilation" not in options and draw(st.booleans())
    steps = (1, 2, 3) if has_steps else (1,)
    number = st.tuples(st.integers(0, 4), st.integers(0, max(LENGTHS)), st.sampled_from(steps))
    rows = draw(st.lists(number, min_size=1, max_size=24))
    rows = [(e, start % LENGTHS[e], step) for e, start, step in rows]
    probe = TableCase({**options, "samples": functions})

    def is_inside(episode: int, start: int, step: int) -> bool:
        dilations = (step,) if has_steps else probe.dilations
        ends = (start + (probe.span - 1) * min(dilations), start)
        return options.get("pad") in ("edge", "after") or ends[0] < LENGTHS[episode]

    rows = [row for row in rows if is_inside(*row)] or [(3, 2, 1)]
    table = {"episode": [key_of(e) for e, *_ in rows], "start": [start for _, start, _ in rows]}
    if has_steps:
        table |= {
            "dilation": [step for *_, step in rows],
            "reverse": [s % 2 > 0 for _, s, _ in rows],
        }
    return table


@st.composite
def tables_of_lists(draw: st.DrawFn, options: dict[str, Any]) -> Any:
    """Lists of frames in any order, of one length or several."""
    least, more = draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 2, 4]))
    number = st.lists(st.integers(0, 99), min_size=least, max_size=least + more)
    rows = draw(st.lists(st.tuples(st.integers(0, 4), number), min_size=1, max_size=20))
    if more:
        is_dense = {*options["features"]} <= {"image", "action", "id"}
        forms = ["list", "pad", *["nested"] * is_dense]
        options["ragged"] = draw(st.sampled_from(forms))
    if draw(st.integers(0, 3)) == 0 and options["batch_size"]:
        size, padded = draw(st.integers(1, 20)), draw(st.sampled_from([None, None, True]))
        max_rows = draw(st.sampled_from([None, None, 3]))
        options["batch_size"] = Budget(size, "frames", padded, max_rows, "alone")
        options["last_batch"] = draw(st.sampled_from(["repeat", "keep"]))
    frames = [[frame % LENGTHS[e] for frame in numbers] for e, numbers in rows]
    return {"episode": [key_of(e) for e, _ in rows], "frames": frames}


@st.composite
def tables_of_anchors(draw: st.DrawFn, options: dict[str, Any]) -> Any:
    """Starts with the columns `goal`, anywhere, and `near`, from 2 before to 5 behind the start."""
    within = draw(st.sampled_from([None, (-2, 5)]))
    choices: list[Any] = [
        [0, At("goal", [0, 2])],
        At("near", within=within),
        [At("near", [1, -1], within), 0],
        [At("goal", -1), At("near", 0, within)],
        range(-1, 2),
    ]
    options["windows"] = {
        name: draw(st.sampled_from(choices)) for name in ("id", *options["features"][:-1])
    }
    if draw(st.booleans()):
        options["clip_len"] = draw(st.integers(1, 3))
        if len(options["windows"]) > 1:
            options["windows"].pop(options["features"][0])
    pad = draw(st.sampled_from([None, "edge", "before", "after"]))
    if pad:
        options["pad"] = pad
    number = st.tuples(
        st.integers(0, 4), st.integers(0, 99), st.integers(-3, 32), st.integers(-2, 5)
    )
    drawn = draw(st.lists(number, min_size=1, max_size=20))
    rows = [(e, s % LENGTHS[e], goal, s % LENGTHS[e] + near) for e, s, goal, near in drawn]
    rows += [(3, 5, 12, 6), (4, 4, 9, 5)]
    table = anchored_table(rows)
    probe = TableCase({**options, "samples": [{**table, "row": [*range(len(rows))]}]})
    fits = [
        all(frames is not None for _, frames in probe.variants((number, row[1])))
        for number, row in enumerate(rows)
    ]
    return anchored_table([row for row, is_inside in zip(rows, fits, strict=True) if is_inside])


def anchored_table(rows: Sequence[tuple[int, int, int, int]]) -> dict[str, Any]:
    episode, start, goal, near = map(list, zip(*rows, strict=True))
    return {"episode": [*map(key_of, episode)], "start": start, "goal": goal, "near": near}


@st.composite
def with_columns(draw: st.DrawFn, table: dict[str, Any], has_repeat: bool) -> None:
    """Add columns of all kinds to a table."""
    count = len(table["episode"])
    table["row"] = draw(st.permutations(range(count)))
    if draw(st.booleans()):
        table["weight"] = [number / 8 for number in range(count)]
    if draw(st.booleans()):
        table["caption"] = [
            None if i % 3 == 2 else f"caption {i} 🙂" * (i % 3) for i in range(count)
        ]
    if draw(st.booleans()):
        table["vector"] = [[number, -number, 0.5] for number in range(count)]
    if has_repeat and draw(st.integers(0, 2)) == 0:
        times = draw(st.sampled_from([(0, 1, 2, 1), (1, 3), (2, 0.5, 1.25)]))
        table["repeat"] = np.resize(times, count).tolist()
        table["repeat"][0] = 1
