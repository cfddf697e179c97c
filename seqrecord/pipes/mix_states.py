"""The position of a mix, which can be saved and loaded: that of each of its sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.errors import StateError
from seqrecord.pipes.epochs import Epochs
from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_plan import MixPlan
from seqrecord.pipes.states import Sharing, State, shown
from seqrecord.sampling import Part, PlanSettings
from seqrecord.text import counted

__all__ = ["MixEpochs"]

_VERSION = 1
_KEYS = ("mix_version", "epoch", "batch", "mix", "sources")
_MOST = 1 << 62
_OWN = ("clips", "batches", "waiting_for_batches_seconds")  # counted by the mix alone
_CHOSEN = ("num_cursors", "block_frames", "run_frames", "first_block_frames")


class MixEpochs(Epochs):
    """A mix's epochs, one after the other, and the position in them. Picklable.

    That is the epoch and how many of its batches were delivered; where each source is follows from
    it. A state says that too: its epoch, and the clip in it that comes next.
    """

    loader: Any  # a MixLoader

    def state(self, part: Part, *, at_end: bool = False) -> dict[str, Any]:
        """See `Epochs.state`."""
        self._follow_workers()
        if self._in_workers:
            raise StateError(
                "the position is in a DataLoader's worker processes, which this process cannot see",
                expected="torchdata's StatefulDataLoader(SeqRecordMix(…), batch_size=None, …), "
                "whose state_dict() has it; or num_workers=0",
                got=f"a state_dict() asked for while workers run, or have run, epoch {self._epoch}",
            )
        worker = get_worker_info()
        here = Sharing.of(part, worker.id, worker.num_workers) if worker else Sharing.of(part, 0, 1)
        sharing = self._sharing or here
        over = self._ended and not at_end and worker is None
        epoch, batch = self._epoch + over, 0 if over else self._batch
        mix: MixLoader = self.loader
        clips = _clips(mix, epoch, batch, sharing)
        sources = {}
        for name, loader in mix.loaders.items():
            number, first = loader.locate(clips[name], sharing.num_parts)
            sources[name] = State(
                epoch=number,
                batch=clips[name] - first,
                sharing=sharing,
                settings=loader.settings(sharing.num_parts),
                request=loader.request(),
                episodes=loader.selection.identity,
            ).to_json()
        return {
            "mix_version": _VERSION,
            "epoch": epoch,
            "batch": batch,
            "mix": _request(mix),
            "sources": sources,
        }

    def load(self, state: Mapping[str, Any], part: Part) -> None:
        """See `Epochs.load`."""
        mix: MixLoader = self.loader
        epoch, batch, states = _parsed(state, _request(mix))
        for name, source in states.items():
            mix.loaders[name].check_state(source)
        sharing = next(iter(states.values())).sharing
        settings = {name: state.settings for name, state in states.items()}
        note = b""
        if batch or sharing.num_parts == part.count:
            with _with_settings(mix, settings, sharing.num_parts):
                self._check_place(states, epoch, batch, sharing)
            chosen = [_chosen(one) for one in settings.values()]
            note = json.dumps([sharing.num_parts, chosen], separators=(",", ":")).encode()
        self._go_to(epoch)
        self._batch, self._sharing, self._note = batch, sharing if batch else None, note
        self._loaded = os.getpid()
        self._publish()

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far: of the mix, and of each source."""
        mix: MixLoader = self.loader
        own, sources = self._stats.report(), {}
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

    def _check_place(
        self, states: Mapping[str, State], epoch: int, batch: int, sharing: Sharing
    ) -> None:
        """Raise `StateError` for a place that is not the epoch's, or not that of the sources."""
        mix: MixLoader = self.loader
        num_batches = _plan(mix, epoch, sharing).num_batches
        if batch > num_batches:
            raise StateError(
                "the saved state is beyond the end of its epoch",
                expected=f"at most {num_batches} batches",
                got=batch,
            )
        clips = _clips(mix, epoch, batch, sharing)
        for name, state in states.items():
            number, first = mix.loaders[name].locate(clips[name], sharing.num_parts)
            if (state.epoch, state.batch) != (number, clips[name] - first):
                raise StateError(
                    f"a state's source {name!r} is not where the mix is",
                    expected=f"epoch {number}, clip {clips[name] - first}",
                    got=f"epoch {state.epoch}, clip {state.batch}",
                )

    def _use_note(self, note: bytes) -> None:
        """Keep the settings of a state that workers have loaded; see `Epochs`."""
        if note and note != self._note:
            num_parts, chosen = json.loads(note)
            for loader, values in zip(self.loader.loaders.values(), chosen, strict=True):
                own = loader.settings(num_parts)
                loader.use_settings(_with_chosen(own, values), num_parts)
            self._note = note


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


def _parsed(state: object, request: Mapping[str, Any]) -> tuple[int, int, dict[str, State]]:
    """Epoch, batch and the sources' states. `StateError` for those of no mix, or of another."""
    if not isinstance(state, Mapping) or "mix_version" not in state:
        raise StateError(
            "not a state of a SeqRecordMix",
            expected=f"a dict of {', '.join(_KEYS)}",
            got=shown(state),
        )
    if state["mix_version"] != _VERSION or isinstance(state["mix_version"], bool):
        raise StateError(
            "a state of another version", expected=_VERSION, got=shown(state["mix_version"])
        )
    if set(state) != set(_KEYS):
        raise StateError(
            "a state of other entries than it should have",
            expected=", ".join(_KEYS),
            got=shown(list(state)),
        )
    for name in ("epoch", "batch"):
        value = state[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
            raise StateError(f"a state's {name} is out of range", got=shown(value))
    found, sources = state["mix"], state["sources"]
    if not isinstance(found, Mapping) or not isinstance(sources, Mapping):
        raise StateError("a state of no mix", expected="dicts", got=shown([found, sources]))
    differ = [name for name in request if name not in found or found[name] != request[name]]
    if differ:
        raise StateError(
            f"the saved state is of another mix: {', '.join(differ)}",
            expected=", ".join(f"{name}={request[name]!r}" for name in differ),
            got=", ".join(f"{name}={shown(found.get(name))}" for name in differ),
        )
    names = [name for name, _ in request["shares"]]
    if set(sources) != set(names):
        raise StateError(
            "a state of other sources", expected=", ".join(names), got=shown(list(sources))
        )
    states = {name: State.parse(sources[name]) for name in names}
    for name, one in states.items():
        if one.of_workers is not None or one.stages:
            raise StateError(
                f"a state's source {name!r} has changed its ranks or workers, as no mix does",
                expected="one worker, and no stages",
                got=f"{one.sharing}, {counted(len(one.stages), 'stage')}",
            )
    if len({one.sharing for one in states.values()}) > 1:
        raise StateError(
            "a state's sources are of different ranks or workers",
            got="; ".join(f"{name}: {one.sharing}" for name, one in states.items()),
        )
    return state["epoch"], state["batch"], states


def _plan(mix: MixLoader, epoch: int, sharing: Sharing) -> MixPlan:
    part = Part(sharing.worker or 0, sharing.num_parts)
    return mix.plan(epoch, part, workers=sharing.workers)


def _clips(mix: MixLoader, epoch: int, batch: int, sharing: Sharing) -> dict[str, int]:
    """How many clips each source has given, over all of its epochs."""
    return dict(zip(mix.names, _plan(mix, epoch, sharing).given(batch).tolist(), strict=True))


@contextmanager
def _with_settings(
    mix: MixLoader, settings: Mapping[str, PlanSettings], num_parts: int
) -> Iterator[None]:
    with ExitStack() as stack:
        for name, one in settings.items():
            stack.enter_context(mix.loaders[name].with_settings(one, num_parts))
        yield


def _chosen(settings: PlanSettings) -> list[int | None]:
    """What memory and defaults have chosen."""
    return [getattr(settings, name) for name in _CHOSEN]


def _with_chosen(settings: PlanSettings, values: list[int | None]) -> PlanSettings:
    chosen: dict[str, Any] = dict(zip(_CHOSEN, values, strict=True))
    return replace(settings, **chosen)


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
