"""The sources of a mix: the features of its batches, where in these each source is, and how the
epochs of a source follow each other."""

from __future__ import annotations

import hashlib
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from seqrecord.clips.tables import IntArray
from seqrecord.engine.batches import Channel, OpenBatch
from seqrecord.engine.device.streams import SideStream
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, StateError
from seqrecord.feature_kinds import differences
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.options import EngineOptions, LoaderOptions
from seqrecord.pipes.selecting import select
from seqrecord.pipes.selection import Selection
from seqrecord.pipes.states import Remainder, Sessions, SourceRemainder, SourceState
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling import Clips, Part
from seqrecord.sampling.elastic import Session
from seqrecord.sampling.random_order import key_of
from seqrecord.sampling.shares import Shares
from seqrecord.schema import FeatureSpec

_GIVEN = ("rank", "world_size", "device")  # to each source
_OF_THE_MIX = ("batch_size", "drop_last", "even_batches", "seed", "memory_limit", *_GIVEN)
_ENGINE_OF_THE_MIX = ("num_threads", "thread_niceness", "video_decoder", "trace")
_EPOCHS = range(1 << 62)  # those that a state may name

Join: TypeAlias = Literal["union", "intersection"]

StoppingStrategy: TypeAlias = Literal["first_exhausted", "all_exhausted"] | int
"""When an epoch ends; see `SeqRecordMix`."""


@dataclass(frozen=True)
class Features:
    """The features of batches: dtype and shape of a frame, and how many frames a clip has.

    `missing` has, by feature, the numbers of those sources that lack it. `disagreement` says, in
    words, which shapes do not go into one batch; then there are none.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    squeezed: frozenset[str]
    missing: Mapping[str, tuple[int, ...]]
    disagreement: tuple[str, str] | None  # a feature, and what each source has of it

    @classmethod
    def of(cls, sources: Mapping[str, Selection], join: Join) -> Features:
        """Of all sources, or with "intersection" those that all of them have.

        Raises `ClipError` where there is none that all of them have.
        """
        lacking = {
            name: tuple(i for i, one in enumerate(sources.values()) if name not in one.made)
            for name in dict.fromkeys(name for one in sources.values() for name in one.made)
        }
        names = [name for name, without in lacking.items() if join == "union" or not without]
        if not names:
            raise ClipError(
                "no feature is in all sources of the mix",
                expected='a common feature, or features="union"',
                got="; ".join(f"{name}: {', '.join(one.made)}" for name, one in sources.items()),
            )
        specs, lengths, disagreement = {}, {}, None
        for name in names:
            having = {source: one for source, one in sources.items() if name in one.made}
            found = {
                source: (one.made[name], one.lengths[name], name in one.squeezed)
                for source, one in having.items()
            }
            specs[name], lengths[name], _ = next(iter(found.values()))
            if disagreement is None and not _agree(list(found.values())):
                said = (f"{source}: {_shown(*item)}" for source, item in found.items())
                disagreement = name, "; ".join(said)
        missing = {} if disagreement else {n: lacking[n] for n in names if lacking[n]}
        squeezed = frozenset(n for n in names for one in sources.values() if n in one.squeezed)
        return cls(specs, lengths, squeezed, missing, disagreement)

    @property
    def missing_arrays(self) -> dict[str, tuple[int, ...]]:
        """Those of `missing` that are arrays, not texts or bytes."""
        return {n: lack for n, lack in self.missing.items() if self.specs[n].value == "array"}


def check_meanings_agree(features: Iterable[str], sources: Mapping[str, Selection]) -> None:
    """Raise `ClipError` for a feature of another kind or unit in one source than in another.

    A warning names a feature whose kind or unit only some of them declare. Features that functions
    of the user make or change are exempt, and so are texts.
    """
    for name in features:
        found = {s: _meaning(one, name) for s, one in sources.items() if name in one.made}
        specs = {s: spec for s, spec in found.items() if spec is not None and spec.value == "array"}
        for what in ("kind", "unit"):
            told = {source: getattr(spec, what) for source, spec in specs.items()}
            known = [source for source, text in told.items() if text is not None]
            for source in specs if known else ():
                sure = known[0]
                is_known = differences(specs[sure], specs[source]).get(what)
                if is_known is None:
                    continue
                dataset = sources[source].dataset
                given = f"{dataset.contents.stored_name(name)}={told[sure]}"
                command = f"seqrecord edit describe {shlex.quote(dataset.url)} --{what} {given}"
                got = "; ".join(f"{source}: {text or 'unknown'}" for source, text in told.items())
                if is_known:
                    raise _conflict(name, what, command, got)
                say_once(
                    f"a mix has feature {name} of a {what} that is unknown in a source: {got}; if "
                    f"it is {told[sure]}: `{command}`"
                )


def _meaning(selection: Selection, name: str) -> FeatureSpec | None:
    """A feature of clips with its kind and unit; `None` if a function of the user makes or changes
    it, unless that declares its unit, as `DepthToMeters` does."""
    spec, functions = selection.dataset.features.get(name), selection.draws.functions
    called = () if functions is None else functions.functions
    for one in reversed((selection.frames.transform, *called)):
        if spec is not None and name in (units := getattr(one, "units", {})):
            return replace(spec, unit=units[name])
    is_kept = selection.frames.transform is None or name in selection.frames.unchanged
    return spec if is_kept and (functions is None or name in functions.unchanged) else None


def _conflict(name: str, what: str, command: str, got: str) -> ClipError:
    remedy = "rename the feature of a source (rename=)"
    if what == "unit":
        remedy = "convert the feature in the frame_transform or clip_transform of a source (depth "
        remedy += f"by DepthToMeters({name!r}))"
    return ClipError(
        f"the sources of a mix disagree on the {what} of a feature",
        feature=name,
        expected=f"one {what}: {remedy}; or correct a wrong one: `{command}`",
        got=got,
    )


def _agree(found: Sequence[tuple[ArraySpec, int, bool]]) -> bool:
    """Whether these go into one batch: arrays make a tensor of one shape."""
    kinds = {(spec.value, spec.dtype, spec.shape, *frames) for spec, *frames in found}
    return len(kinds) == 1 and all(spec.is_fixed or spec.value != "array" for spec, *_ in found)


def _shown(spec: ArraySpec, length: int, is_squeezed: bool) -> str:
    frames = [] if is_squeezed else [length]
    if spec.value != "array":
        return f"{spec} {frames}"
    return str(replace(spec, shape=(*frames, *spec.shape)))


@dataclass(frozen=True)
class MixPlan:
    """The batches of one part of one epoch: which source each slot of each is for.

    Slots are numbered over all epochs of the part, or from where it went on with other ranks; with
    `single_source_batches` it is batches that are, for then a batch is of one source. `first` is
    the number of the epoch's first batch. A source's clips are numbered over all of its epochs:
    those that it gives in one epoch of the mix follow those that it gave in the one before.
    """

    part: Part
    num_batches: int
    batch_size: int
    shares: Shares
    single_source_batches: bool
    first: int
    rest: Remainder | None = None

    @staticmethod
    def count_batches(
        stopping_strategy: StoppingStrategy,
        slots: Sequence[Fraction],
        size: int,
        worker: int,
        workers: int,
        least: int = 1,
    ) -> int:
        """The batches, of `size` slots, of an epoch of one part; the same on all ranks.

        A source of `n` clips with a share `p` gives its last one within `n / p` slots; there are
        these of each source: "first_exhausted" ends before the batch in which the first source
        would begin again, "all_exhausted" with the batch in which the last one has given all. An
        integer is shared among a rank's workers. "first_exhausted" gives `least` batches at least.
        """
        if isinstance(stopping_strategy, int):
            return (stopping_strategy + workers - 1 - worker) // workers
        if stopping_strategy == "first_exhausted":
            return max(least, int(min(slots) // size))
        return int(-(-max(slots) // size))

    @property
    def counts(self) -> dict[str, int]:
        """See `Plan.counts`: what sources repeat is told of each."""
        return {}

    @property
    def rests(self) -> Sequence[SourceRemainder]:
        """What is left of each source."""
        whole = SourceRemainder((), 0)
        return [whole] * len(self.shares.counts) if self.rest is None else self.rest.sources

    def sources(self, batch: int) -> IntArray:
        """The source of each slot of a batch; int64[batch_size]."""
        number, size = self.first + batch, self.batch_size
        if self.single_source_batches:
            return np.repeat(self.shares.sources(number, number + 1), size)
        return self.shares.sources(number * size, (number + 1) * size)

    def given(self, batch: int) -> IntArray:
        """How many clips each source has given before a batch; int64[sources]."""
        number, size = self.first + batch, self.batch_size
        if self.single_source_batches:
            return self.shares.given(number) * size
        return self.shares.given(number * size)

    def places(self, source: int, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Batch and slot of the clips `[start, stop)` of a source; int64[stop - start] each."""
        size = self.batch_size
        if not self.single_source_batches:
            batch, slot = np.divmod(self.shares.slots(source, start, stop), size)
            return batch - self.first, slot
        own, slot = np.divmod(np.arange(start, stop), size)  # the batches of this source alone
        first = start // size
        batches = self.shares.slots(source, first, max(first, -(-stop // size)))
        return batches[own - first] - self.first, slot


def check_source(name: str, options: LoaderOptions) -> None:
    """Raise `ClipError` for a source that sets what belongs to the mix."""
    if options.order == "sequences":
        raise ClipError(
            f"source {name!r} of a mix gives sequences; rows of a mix have clips of all sources",
            expected="a source without order; for sequences a loader for each dataset",
            got="order='sequences'",
        )
    given = _changed(options, _OF_THE_MIX)
    given |= {f"engine.{n}": v for n, v in _changed(options.tuning, _ENGINE_OF_THE_MIX).items()}
    if given:
        raise ClipError(
            f"source {name!r} of a mix sets what belongs to the mix",
            expected=f"a loader without {', '.join(given)}; give SeqRecordMix what it has of these",
            got=", ".join(f"{name}={value!r}" for name, value in given.items()),
        )


def _changed(options: LoaderOptions | EngineOptions, names: Sequence[str]) -> dict[str, Any]:
    """Those of these fields that are not as by default."""
    defaults = {field.name: field.default for field in fields(options)}
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value != defaults[name]}


@dataclass
class Done:
    """What a source has done in one iteration of a mix."""

    stats: EngineStats
    repeated: int = 0  # clips of the epochs begun that another part gives too
    num_interleaved: int = 0  # places at a time, in the last of them


class SourceLoader(ClipLoader):
    """Plans and executes the epochs of a source; the batches are the mix's.

    Args:
        name: in the mix; its seed depends on that, not on what other sources there are.
        loader: says which clips; of these are read `features`, by default all.
        mix: what belongs to the mix.
        batch_size: about how many clips it has in a batch.
        limit_in: the bytes that the mix leaves to it in each of so many workers of a rank.
    """

    def __init__(
        self,
        name: str,
        loader: ClipLoader,
        features: list[str] | None,
        mix: LoaderOptions,
        batch_size: int,
        limit_in: Callable[[int], int],
    ) -> None:
        selection, own = loader.selection, loader.options
        can_choose = own.frame_transform is None and selection.draws.functions is None
        if features is not None and can_choose:
            names = [name for name in selection.dataset.features if name in features]
            if names != list(selection.dataset.features):
                own = _of_features(own, names, selection)
                selection = select(selection.dataset, own)
        digest = hashlib.sha256(name.encode()).digest()
        seed = key_of(mix.seed, int.from_bytes(digest[:8], "little")) >> 1
        given = {one: getattr(mix, one) for one in _GIVEN}
        on_host = own.frame_transform is not None
        given["engine"] = replace(
            mix.tuning,
            num_cursors=own.tuning.num_cursors,
            shuffle_buffer=own.tuning.shuffle_buffer,
            video_decoder="pyav" if on_host else mix.tuning.video_decoder,
        )
        options = replace(own, seed=seed, batch_size=batch_size, **given)
        super().__init__(selection, options, limit_in)
        self._left: dict[tuple[int, Sessions], int] = {}  # clips of epochs that have sessions

    def length(self, epoch: int, num_parts: int, sessions: Sessions = ()) -> int:
        """How many clips each of so many parts has of an epoch, or of what sessions have left."""
        if not sessions:
            return self._clips_before(epoch + 1, num_parts) - self._clips_before(epoch, num_parts)
        if (key := (epoch, sessions)) not in self._left:
            self._left[key] = self.planner.clips(epoch, sessions).num_clips
        return -(-self._left[key] // num_parts)

    def check_remainder(self, rest: SourceRemainder, num_parts: int) -> None:
        """Raise `StateError` where epochs that have clips lie between those of `rest`."""
        for (before, _), (epoch, _) in pairwise(rest.pending):
            if self._clips_before(epoch, num_parts) > self._clips_before(before + 1, num_parts):
                raise StateError(
                    "the saved state: pending epochs that do not follow each other",
                    file=self.selection.dataset.url,
                    expected=f"epoch {before + 1} after epoch {before}",
                    got=epoch,
                )

    def locate(self, clip: int, num_parts: int, rest: SourceRemainder) -> tuple[int, int]:
        """The epoch that has a part's clip, and the first one there; both counted over the epochs
        that `rest` has.
        """
        first = 0
        for epoch, sessions in rest.pending:
            length = self.length(epoch, num_parts, sessions)
            if clip < first + length:
                return epoch, first
            first += length
        skipped = self._clips_before(rest.following, num_parts)
        number = clip - first + skipped  # over all whole epochs
        epoch = bisect_right(_EPOCHS, number, key=lambda i: self._clips_before(i, num_parts)) - 1
        if epoch == _EPOCHS[-1]:
            raise ClipError(
                "a source of a mix has no clips",
                file=self.selection.dataset.url,
                expected="a clip in one of its epochs",
                got="weights of clips that are too small",
            )
        return epoch, self._clips_before(epoch, num_parts) - skipped + first

    def remainder_of(
        self, given: Sequence[int], ranks: int, before: SourceRemainder, state: SourceState
    ) -> SourceRemainder:
        """What is left when each worker of a rank has given so many clips since `before`.

        The clips that parts have given of each epoch make one more session of that epoch.
        """
        count, old = ranks * len(given), dict(before.pending)
        places = [self.locate(clips, count, before) for clips in given]
        chosen = dict(zip(old, state.left, strict=False))  # they may be of a later rest
        first, last = min(places)[0], max(places)[0]
        pending: list[tuple[int, Sessions]] = []
        following = first
        for epoch in range(first, max([last, *old]) + 1):
            sessions = old.get(epoch, ())
            length = self.length(epoch, count, sessions)
            clips = tuple(
                length if place > epoch else total - begin if place == epoch else 0
                for total, (place, begin) in zip(given, places, strict=True)
            )
            if any(clips):
                settings = chosen.get(epoch, state.settings)
                sessions = (*sessions, Session(ranks, clips, settings, by_clip=True))
            if sessions:
                pending.append((epoch, sessions))
                following = epoch + 1
        return SourceRemainder(tuple(pending), following)

    def run(
        self,
        channel: Channel,
        order: MixPlan,
        number: int,
        clips: tuple[int, int],
        done: Done,
        stream: SideStream | None,
    ) -> None:
        """Fill batches with clips `[clip, last)`, counted over the epochs, one after the other.

        This is source `number` of the mix, whose plan `order` says where clips go.
        """
        (clip, last), part, rest = clips, order.part, order.rests[number]
        fill = partial(_fill, channel, done.stats)
        while clip < last:
            epoch, offset = self.locate(clip, part.count, rest)
            sessions = rest.sessions(epoch)
            plan = self.planner.plan(epoch, part, sessions)
            done.repeated += plan.num_repeated
            done.num_interleaved = plan.num_cursors
            execution = self.execution(plan, sessions=sessions, stats=done.stats, stream=stream)
            some = clip - offset, min(last - offset, plan.num_clips)
            try:
                execution.run(channel, some, partial(_slots, order, number, offset), fill)
            finally:
                execution.release()
            clip = offset + plan.num_clips

    def _clips_before(self, epoch: int, num_parts: int) -> int:
        """How many clips each of so many parts has of all epochs before one."""
        settings = self.planner.settings
        seed, shuffle = settings.seed, settings.shuffle
        return self.selection.clip_set.clips_before(epoch, num_parts, seed=seed, shuffle=shuffle)


def _of_features(options: LoaderOptions, names: list[str], selection: Selection) -> LoaderOptions:
    """The options of a source of which only these features are read, of its open dataset."""

    def some(given: Any) -> Any:
        """What a dict has of these features, or which of them a list names."""
        if isinstance(given, Mapping):
            return {name: given[name] for name in given if name in names}
        return [name for name in given or () if name in names]

    windows, ragged = some(options.windows), options.ragged
    listed = options.lists_frames
    alone = (
        not (windows or listed) and options.clip_len is None
    )  # the frame `start`, which always is there
    return replace(
        options,
        features=names,
        rename=None,
        resize=None,
        windows=windows or None,
        clip_len=1 if alone else options.clip_len,
        pad=None if alone else options.pad,
        ragged=some(ragged) if isinstance(ragged, Mapping) else ragged,
        clip_transform=_steps_of(selection, names) or None,
    )


def _steps_of(selection: Selection, names: list[str]) -> list[Any]:
    """The steps of a `clip_transform` for those of its features that have these names, or are the
    masks of such."""
    found: list[Any] = []
    named: dict[str, Any] = {}
    for crops in selection.draws.crops:
        arrays = {n: spec for n, spec in selection.frames.arrays.items() if n in crops.features}
        kept = tuple(n for n, spec in arrays.items() if (spec.mask_of or n) in names)
        if kept and crops.name is not None:
            named[crops.name] = [step.of_features(None) for step in crops.steps]
        elif kept:  # not those of the largest feature that is left
            found += [step.of_features(kept) for step in crops.steps]
    return [named] if named else found


def _fill(channel: Channel, stats: EngineStats, batch: OpenBatch, count: int) -> None:
    stats.add(clips=count)
    channel.fill(batch, count)


def _slots(
    order: MixPlan, source: int, offset: int, clips: Clips, first: int
) -> tuple[IntArray, IntArray]:
    """Where the clips of a source's epoch go, which has given `offset` before it."""
    return order.places(source, offset + first, offset + first + len(clips))
