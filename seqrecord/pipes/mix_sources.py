"""The sources of a mix: a loader for each, and how their epochs follow each other."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from seqrecord.clips import IntArray
from seqrecord.engine.batches import Channel, OpenBatch
from seqrecord.engine.device.streams import SideStream
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.mix_plan import MixPlan
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import SourceRest, SourceState, Stages
from seqrecord.sampling import Clips, Part
from seqrecord.sampling.random_order import key_of
from seqrecord.sampling.rest import Stage

__all__ = ["SourceLoader", "SourceRunner", "check_source", "source_seed"]

_OF_THE_MIX = (
    "batch_size",
    "drop_last",
    "equal",
    "seed",
    "memory_limit",
    "rank",
    "world_size",
    "device",
    "video_decoder",
    "num_threads",
    "trace",
)
_EPOCHS = range(1 << 62)  # those that a state may name


def check_source(name: str, options: LoaderOptions) -> None:
    """Raise `ClipError` for a source that sets what belongs to the mix."""
    defaults = {field.name: field.default for field in fields(LoaderOptions)}
    given = [n for n in _OF_THE_MIX if getattr(options, n) != defaults[n]]
    if given:
        raise ClipError(
            f"source {name!r} of a mix sets what belongs to the mix",
            expected=f"a loader without {', '.join(given)}; give SeqRecordMix what it has of these",
            got=", ".join(f"{n}={getattr(options, n)!r}" for n in given),
        )
    if options.order == "sequences":
        raise ClipError(
            f"source {name!r} of a mix gives sequences, whose clips continue from batch to batch",
            expected="a source without order",
            got="order='sequences'",
        )


def source_seed(seed: int, name: str) -> int:
    """The seed of a source: its own, whatever other sources there are."""
    digest = hashlib.sha256(name.encode()).digest()
    return key_of(seed, int.from_bytes(digest[:8], "little")) >> 1


class SourceLoader(ClipLoader):
    """Plans and executes the epochs of a source; the batches are the mix's.

    Its `batch_size` is about how many clips it has in a batch. It has no memory before `limit`.
    """

    def __init__(self, loader: ClipLoader, features: list[str] | None, **options: Any) -> None:
        selection, own = loader.selection, loader.options
        if features is not None and own.frame_transform is None and not _has_functions(selection):
            names = [name for name in selection.dataset.features if name in features]
            if names != list(selection.dataset.features):
                own = _of_features(own, names, selection)
                opened = replace(
                    own, verify=None, storage_options=None, cache_dir=None, cache_limit=None
                )
                selection = ClipSelection(selection.dataset, opened)
        super().__init__(selection, replace(own, **options), of_mix=True)
        self._left: dict[tuple[int, Stages], int] = {}  # clips of epochs that have stages

    def length(self, epoch: int, num_parts: int, stages: Stages = ()) -> int:
        """How many clips each of so many parts has of an epoch, or of what stages have left."""
        if not stages:
            return self._clips_before(epoch + 1, num_parts) - self._clips_before(epoch, num_parts)
        if (key := (epoch, stages)) not in self._left:
            self._left[key] = self.clips_left(epoch, stages).num_clips
        return -(-self._left[key] // num_parts)

    def locate(self, clip: int, num_parts: int, rest: SourceRest | None = None) -> tuple[int, int]:
        """The epoch that has a part's clip, and the first one there; both counted over all epochs,
        or over those that `rest` has.
        """
        first, skipped = 0, 0
        if rest is not None:
            for epoch, stages in rest.pending:
                length = self.length(epoch, num_parts, stages)
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

    def rest_of(
        self,
        given: Sequence[int],
        ranks: int,
        before: SourceRest | None,
        state: SourceState,
    ) -> SourceRest:
        """What is left when each worker of a rank has given so many clips since `before`.

        The clips that parts have given of each epoch make one more stage of that epoch.
        """
        count = ranks * len(given)
        places = [self.locate(clips, count, before) for clips in given]
        old = {} if before is None else dict(before.pending)
        chosen = dict(zip(old, state.left, strict=True))
        first, last = min(places)[0], max(places)[0]
        pending: list[tuple[int, Stages]] = []
        following = first
        for epoch in range(first, max([last, *old]) + 1):
            stages = old.get(epoch, ())
            length = self.length(epoch, count, stages)
            clips = tuple(
                length if place > epoch else total - begin if place == epoch else 0
                for total, (place, begin) in zip(given, places, strict=True)
            )
            if any(clips):
                settings = chosen.get(epoch, state.settings)
                stages = (*stages, Stage(ranks, clips, settings, by_clip=True))
            if stages:
                pending.append((epoch, stages))
                following = epoch + 1
        return SourceRest(tuple(pending), following)

    def _clips_before(self, epoch: int, num_parts: int) -> int:
        """How many clips each of so many parts has of all epochs before one."""
        seed, shuffle = self._settings.seed, self._settings.shuffle
        return self.selection.clips_before(epoch, num_parts, seed=seed, shuffle=shuffle)


def _of_features(
    options: LoaderOptions, names: list[str], selection: ClipSelection
) -> LoaderOptions:
    """The options of a source of which only these features are read."""
    windows, known, ragged = options.windows, options.last_known, options.ragged
    if windows is not None:
        windows = {name: windows[name] for name in windows if name in names}
    if isinstance(known, Mapping):
        known = {name: known[name] for name in known if name in names}
    elif known is not None:
        known = [name for name in known if name in names]
    if isinstance(ragged, Mapping):
        ragged = {name: ragged[name] for name in ragged if name in names}
    alone = not windows and options.clip_len is None  # the frame `start`, which always is there
    return replace(
        options,
        features=names,
        windows=windows or None,
        clip_len=1 if alone else options.clip_len,
        pad=None if alone else options.pad,
        last_known=known or None,
        unknown=options.unknown if known else None,
        ragged=ragged,
        clip_transform=_steps_of(selection, names) or None,
    )


def _steps_of(selection: ClipSelection, names: list[str]) -> list[Any]:
    """The steps of a `clip_transform` for those of its features that have these names, or are the
    masks of such."""
    if (crops := selection.draws.crops) is None:
        return []
    arrays = {n: spec for n, spec in selection.arrays.items() if n in crops.features}
    kept = tuple(n for n, spec in arrays.items() if (spec.mask_of or n) in names)
    # Not those of the largest feature that is left.
    return [step.of_features(kept) for step in crops.steps] if kept else []


def _has_functions(selection: ClipSelection) -> bool:
    """Whether functions make features of others."""
    return selection.draws.functions is not None


class SourceRunner:
    """A source in one iteration of a mix."""

    def __init__(
        self,
        loader: SourceLoader,
        part: Part,
        stats: EngineStats,
        stream: SideStream | None,
        rest: SourceRest | None,
    ) -> None:
        self.stats = stats
        self.repeated = 0  # clips of the epochs begun that another part gives too
        self.mixed_from = 0  # places at a time, in the last of them
        self._loader, self._part, self._stream, self._rest = loader, part, stream, rest

    def run(self, channel: Channel, order: MixPlan, number: int, clip: int, last: int) -> None:
        """Fill batches with the source's clips `[clip, last)`, counted over its epochs, which goes
        on from one to the next. It is source `number` of the mix, which says where clips go."""
        while clip < last:
            epoch, offset = self._loader.locate(clip, self._part.count, self._rest)
            stages = () if self._rest is None else self._rest.stages(epoch)
            plan = self._loader.plan_epoch(epoch, self._part, stages)
            self.repeated += plan.num_repeated
            self.mixed_from = plan.num_cursors
            execution = self._loader.execution(
                plan, stages=stages, stats=self.stats, stream=self._stream
            )
            clips = clip - offset, min(last - offset, plan.num_clips)
            slots = partial(_slots, order, number, offset)
            try:
                execution.run(channel, clips, slots, partial(self._fill, channel))
            finally:
                execution.release()
            clip = offset + plan.num_clips

    def _fill(self, channel: Channel, batch: OpenBatch, count: int) -> None:
        self.stats.add(clips=count)
        channel.fill(batch, count)


def _slots(
    order: MixPlan, source: int, offset: int, clips: Clips, first: int
) -> tuple[IntArray, IntArray]:
    """Where the clips of a source's epoch go, which has given `offset` before it."""
    return order.places(source, offset + first, offset + first + len(clips))
