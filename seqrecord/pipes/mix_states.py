"""The position of a mix, which can be saved and loaded: that of each of its sources."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.epochs import Epochs, packed
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_plan import MixPlan, MixRest
from seqrecord.pipes.mix_rest import rest_after
from seqrecord.pipes.mix_saved import MixState
from seqrecord.pipes.states import Sharing, State
from seqrecord.sampling import Part
from seqrecord.text import repr_of

__all__ = ["MixEpochs"]

_OWN = ("clips", "batches", "waiting_for_batches_seconds")  # counted by the mix alone


class MixEpochs(Epochs):
    """A mix's epochs, one after the other, and the position in them. Picklable.

    That is the epoch and how many of its batches were delivered; where each source is follows from
    it. A state says that too: its epoch, and the clip in it that comes next.
    """

    loader: Any  # a MixLoader

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._base: MixState | None = None  # that was loaded last: places are counted from there
        self._at_base = False  # the position is there, and not begun
        self._rests: dict[tuple[int, int], MixRest] = {}  # from there, by ranks and workers

    def state(self, part: Part, *, at_end: bool = False) -> dict[str, Any]:
        """See `Epochs.state`."""
        self._check_position("SeqRecordMix")
        if self._at_base and self._sharing is None and self._base is not None:
            return self._base.to_json()
        sharing = self._sharing or Sharing.of(part)
        over = self._ended and not at_end and get_worker_info() is None
        epoch, batch = self._epoch + over, 0 if over else self._delivered
        mix: MixLoader = self.loader
        rest = self._rest(sharing)
        rest = None if rest is not None and epoch < rest.epoch else rest
        clips = _clips(mix, epoch, batch, sharing, rest)
        sources, settings = {}, {}
        for i, (name, loader) in enumerate(mix.loaders.items()):
            own, count = None if rest is None else rest.sources[i], sharing.num_parts
            number, first = loader.locate(clips[name], count, own)
            sources[name] = State(
                epoch=number,
                batch=clips[name] - first,
                sharing=sharing,
                settings=loader.settings(count),
                request=loader.request(),
                episodes=loader.selection.identity,
            )
            pending = () if own is None else own.pending
            settings[name] = {k: loader.settings(count, k, stages) for k, stages in pending}
        found = MixState(epoch, (batch,), _request(mix), sources, rest, settings)
        return found.to_json()

    def load(self, state: Mapping[str, Any], part: Part) -> None:
        """See `Epochs.load`."""
        mix: MixLoader = self.loader
        saved = _checked(MixState.parse(state), _request(mix))
        for i, (name, source) in enumerate(saved.sources.items()):
            mix.loaders[name].check_state(source)
            for epoch, stages in () if saved.rest is None else saved.rest.sources[i].pending:
                left = saved.settings_left[name][epoch]
                left_of = replace(source, settings=left, later=source.settings, stages=stages)
                mix.loaders[name].check_state(left_of)
        with ExitStack() as stack:
            for loader in mix.loaders.values():
                stack.enter_context(loader.unless_it_raises())
            if saved.sharing.num_parts == part.count:
                _use_settings(mix, saved)
            try:
                self._check_place(saved)
            except ClipError as error:
                raise StateError(f"the saved state is of no epoch: {error}") from error
        self._go_to(saved.epoch)
        self._take(saved)
        self._at_base, self._loaded = True, os.getpid()
        self._workers.note = packed(saved)
        self._workers.keep(self._workers.note)
        self._publish()

    def _take(self, saved: MixState) -> None:
        """Count places from a state on."""
        self._base, self._rests = saved, {}

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._at_base = False

    @property
    def _is_at_state(self) -> bool:
        return self._at_base and not self._begun

    def _join(self, epoch: int) -> None:
        is_there = self._at_base and epoch == self._epoch
        super()._join(epoch)
        self._at_base = is_there

    def _position(self, sharing: Sharing) -> tuple[Any, int]:
        base, rest = self._base, self._rest(sharing)
        if not self._at_base or base is None:
            return rest or (), self._batch
        if not _continues(base, sharing):
            return rest or (), 0
        if base.sharing.worker not in (None, sharing.worker):
            base = base.of_rank()  # which says that it is another worker's
        worker = 0 if base.sharing.worker is not None else sharing.worker or 0
        return rest or (), base.batches[worker]

    def _rest(self, sharing: Sharing) -> MixRest | None:
        """Where parts so shared went on with what others had left."""
        base = self._base
        if base is None:
            return None
        if _continues(base, sharing):
            return base.rest
        key = sharing.ranks, sharing.workers
        if key not in self._rests:
            self._rests[key] = rest_after(self.loader, base.of_rank())
        return self._rests[key]

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far: of the mix, and of each source."""
        mix: MixLoader = self.loader
        own, sources = self._report(), {}
        for name, loader in mix.loaders.items():
            runner = mix.runners.get(name)
            clips = loader.clips(0)
            said = EngineStats().report() if runner is None else runner.stats.report()
            sources[name] = {
                **said,
                "bottleneck": STAGES[bottleneck(said, waiting=1.0)],
                "clips_incomplete": clips.num_incomplete,
                "clips_repeated": 0 if runner is None else runner.repeated,
                "episodes_too_short": clips.num_short_episodes,
            }
        return {**_summed(own, sources), "sources": sources}

    def _check_place(self, saved: MixState) -> None:
        """Raise `StateError` for a place that is not the epoch's, or not that of the sources."""
        mix: MixLoader = self.loader
        for worker, batch in enumerate(saved.batches):
            sharing = saved.sharing
            if sharing.worker is None:
                sharing = replace(sharing, worker=worker)
            num_batches = _plan(mix, saved.epoch, sharing, saved.rest).num_batches
            if batch > num_batches:
                raise StateError(
                    "the saved state is beyond the end of its epoch",
                    expected=f"at most {num_batches} batches",
                    got=batch,
                )
        if saved.sharing.worker is None:
            return
        clips = _clips(mix, saved.epoch, saved.batches[0], saved.sharing, saved.rest)
        for i, (name, state) in enumerate(saved.sources.items()):
            own = None if saved.rest is None else saved.rest.sources[i]
            number, first = mix.loaders[name].locate(clips[name], saved.sharing.num_parts, own)
            if (state.epoch, state.batch) != (number, clips[name] - first):
                raise StateError(
                    f"a state's source {name!r} is not where the mix is",
                    expected=f"epoch {number}, clip {clips[name] - first}",
                    got=f"epoch {state.epoch}, clip {state.batch}",
                )

    def _use_note(self, note: bytes) -> None:
        """Count from the state that workers have loaded, with its settings; see `Epochs`."""
        saved = MixState.parse(json.loads(zlib.decompress(note)))
        _use_settings(self.loader, saved)
        self._take(saved)


def _request(mix: MixLoader) -> dict[str, Any]:
    """What was asked of a mix, as JSON."""
    return {
        "shares": [[name, count] for name, count in zip(mix.names, mix.counts, strict=True)],
        "stop": mix.stop,
        "batch_size": mix.batch_size,
        "seed": mix.options.seed,
        "features": mix.join,
        "alternate": mix.alternate,
    }


def _checked(saved: MixState, request: Mapping[str, Any]) -> MixState:
    """The state, its sources in the order of the mix. `StateError` for one of another mix."""
    found = saved.mix
    differ = [name for name in request if name not in found or found[name] != request[name]]
    if differ:
        raise StateError(
            f"the saved state is of another mix: {', '.join(differ)}",
            expected=", ".join(f"{name}={request[name]!r}" for name in differ),
            got=", ".join(f"{name}={repr_of(found.get(name))}" for name in differ),
        )
    names = [name for name, _ in request["shares"]]
    if set(saved.sources) != set(names):
        raise StateError(
            "a state of other sources", expected=", ".join(names), got=repr_of(list(saved.sources))
        )
    return saved.ordered(names)


def _continues(saved: MixState, sharing: Sharing) -> bool:
    """Whether `sharing` goes on with the plans that a state is of."""
    return replace(saved.sharing, worker=None) == replace(sharing, worker=None)


def _use_settings(mix: MixLoader, saved: MixState) -> None:
    """Keep a state's settings for parts of its number."""
    count = saved.sharing.num_parts
    for i, (name, loader) in enumerate(mix.loaders.items()):
        loader.use_settings(saved.sources[name].settings, count)
        for epoch, stages in () if saved.rest is None else saved.rest.sources[i].pending:
            settings = saved.settings_left[name][epoch]
            loader.use_settings(settings, count, epoch, stages)


def _plan(mix: MixLoader, epoch: int, sharing: Sharing, rest: MixRest | None) -> MixPlan:
    part = Part(sharing.worker or 0, sharing.num_parts)
    return mix.plan(epoch, part, rest, workers=sharing.workers)


def _clips(
    mix: MixLoader, epoch: int, batch: int, sharing: Sharing, rest: MixRest | None
) -> dict[str, int]:
    """How many clips each source has given, over all of its epochs or since the last change."""
    given = _plan(mix, epoch, sharing, rest).given(batch)
    return dict(zip(mix.names, given.tolist(), strict=True))


def _summed(own: dict[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mix's own counts, with what its sources have counted."""
    total = dict(own)
    for said in sources.values():
        for name, value in said.items():
            if name in _OWN or isinstance(value, str):
                continue
            if isinstance(value, dict):
                total[name] = {**total.get(name, {})}
                for feature, seconds in value.items():
                    total[name][feature] = total[name].get(feature, 0.0) + seconds
            else:
                total[name] = total.get(name, 0) + value
    if not own["clips"]:
        return total
    # Each waits for the others or for the consumer; the one that does so least limits the mix.
    waits = {name: said["waiting_for_consumer_seconds"] for name, said in sources.items()}
    slowest = min(waits, key=waits.__getitem__)
    total["waiting_for_consumer_seconds"] = waits[slowest]
    if own["waiting_for_batches_seconds"] < waits[slowest]:
        return {**total, "bottleneck": STAGES["consumer"]}
    words = sources[slowest]["bottleneck"]
    return {**total, "bottleneck": f"source {slowest!r}: {words}"}
