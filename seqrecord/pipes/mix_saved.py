"""What a mix's saved state says, read from JSON that anyone may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from seqrecord.errors import StateError
from seqrecord.pipes.mix_plan import MixRest, SourceRest
from seqrecord.pipes.states import (
    Sharing,
    State,
    check_keys,
    check_number,
    parse_settings,
    parse_stages,
    stages_to_json,
)
from seqrecord.sampling import PlanSettings
from seqrecord.text import counted, repr_of

__all__ = ["MIX_VERSION", "MixState"]

MIX_VERSION = "mix_version"
_VERSION = 2
_KEYS = (MIX_VERSION, "epoch", "batch", "mix", "rest", "sources")
_REST = ("epoch", "left", "number", "sources")
_MOST = 1 << 62
_MOST_PENDING = 1 << 10  # epochs of a source


@dataclass(frozen=True)
class MixState:
    """A position of a mix: the batches that each worker of a rank has given of an epoch.

    Those of `sharing`'s worker alone, or of all workers where it is of all. `sources` say of each
    source what it is, its settings, and where it is; `rest` where the mix went on with other ranks
    or workers, and `settings_left` has the settings of epochs that were left there, by source.
    """

    epoch: int
    batches: tuple[int, ...]
    mix: Mapping[str, Any]
    sources: Mapping[str, State]
    rest: MixRest | None
    settings_left: Mapping[str, Mapping[int, PlanSettings]]

    @property
    def sharing(self) -> Sharing:
        return next(iter(self.sources.values())).sharing

    def ordered(self, names: list[str]) -> MixState:
        """The same, with the sources in this order."""
        rest = self.rest
        if rest is not None:
            own = dict(zip(self.sources, rest.sources, strict=True))
            rest = replace(rest, sources=tuple(own[name] for name in names))
        return replace(self, rest=rest, sources={name: self.sources[name] for name in names})

    @property
    def batch(self) -> int:
        """Delivered by the one worker of `sharing`."""
        return self.batches[0]

    def of_rank(self) -> MixState:
        """The same, of all workers of a rank; `StateError` for one worker of several."""
        if self.sharing.worker is None:
            return self
        return self._at(next(iter(self.sources.values())).of_rank().sharing, self.batches)

    def of_all(self, batches: tuple[int, ...]) -> MixState:
        """See `State`; sources then say no place, which the mix's batches tell."""
        return self._at(replace(self.sharing, worker=None), batches)

    def at_worker(self, worker: int, workers: int) -> MixState:
        """See `State`; sources then say no place."""
        return self._at(Sharing(self.sharing.ranks, workers, worker), (0,))

    def next_epoch(self) -> MixState:
        """See `State`."""
        return replace(self, epoch=self.epoch + 1)

    def _at(self, sharing: Sharing, batches: tuple[int, ...]) -> MixState:
        of_workers = (0,) * sharing.workers if sharing.worker is None else None
        sources = {
            name: replace(state, epoch=0, batch=0, sharing=sharing, of_workers=of_workers)
            for name, state in self.sources.items()
        }
        return replace(self, batches=batches, sources=sources)

    def to_json(self) -> dict[str, Any]:
        is_one = self.sharing.worker is not None
        return {
            MIX_VERSION: _VERSION,
            "epoch": self.epoch,
            "batch": self.batches[0] if is_one else list(self.batches),
            "mix": dict(self.mix),
            "rest": None if self.rest is None else self._rest_to_json(self.rest),
            "sources": {name: state.to_json() for name, state in self.sources.items()},
        }

    def _rest_to_json(self, rest: MixRest) -> dict[str, Any]:
        return {
            "epoch": rest.epoch,
            "left": rest.left,
            "number": rest.number,
            "sources": {
                name: {
                    "following": own.following,
                    "pending": [
                        {
                            "epoch": epoch,
                            "stages": stages_to_json(stages),
                            "settings": dict(vars(self.settings_left[name][epoch])),
                        }
                        for epoch, stages in own.pending
                    ],
                }
                for name, own in zip(self.sources, rest.sources, strict=True)
            },
        }

    @classmethod
    def parse(cls, state: object) -> MixState:
        """Inverse of `to_json`; `StateError` for what no mix has saved."""
        if not isinstance(state, Mapping) or MIX_VERSION not in state:
            raise StateError(
                "not a state of a SeqRecordMix",
                expected=f"a dict of {', '.join(_KEYS)}",
                got=repr_of(state),
            )
        if type(state[MIX_VERSION]) is not int or state[MIX_VERSION] != _VERSION:
            raise StateError(
                "a state of another version", expected=_VERSION, got=repr_of(state[MIX_VERSION])
            )
        check_keys("a state", state, _KEYS)
        epoch, is_of_all = _number("epoch", state["epoch"]), isinstance(state["batch"], list)
        batches = state["batch"] if is_of_all else [state["batch"]]
        found, sources = state["mix"], state["sources"]
        if not isinstance(found, Mapping) or not isinstance(sources, Mapping):
            raise StateError("a state of no mix", expected="dicts", got=repr_of([found, sources]))
        if not sources:
            raise StateError("a state of other sources", expected="one at least", got="none")
        states = {str(name): State.parse(one) for name, one in sources.items()}
        for name, one in states.items():
            if (one.of_workers is not None) != is_of_all or one.stages:
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
        sharing = next(iter(states.values())).sharing
        if is_of_all and len(batches) != sharing.workers:
            raise StateError(
                "a state's batch is not of each worker", expected=sharing, got=repr_of(batches)
            )
        rest, settings = _parse_rest(state["rest"], list(states))
        numbers = tuple(_number("batch", batch) for batch in batches)
        return cls(epoch, numbers, found, states, rest, settings)


def _parse_rest(
    saved: object, names: list[str]
) -> tuple[MixRest | None, dict[str, dict[int, PlanSettings]]]:
    if saved is None:
        return None, {}
    saved = check_keys("a state's rest", saved, _REST)
    epoch, number = _number("epoch", saved["epoch"]), _number("number", saved["number"])
    left = None if saved["left"] is None else _number("left", saved["left"])
    if not isinstance(saved["sources"], Mapping) or set(saved["sources"]) != set(names):
        raise StateError(
            "a state of other sources", expected=", ".join(names), got=repr_of(saved["sources"])
        )
    sources, settings = [], {}
    for name in names:
        own = saved["sources"][name]
        check_keys("a state's source", own, ("following", "pending"))
        items = own["pending"]
        if not isinstance(items, list) or len(items) > _MOST_PENDING:
            raise StateError("a state's pending epochs are no list", got=repr_of(items))
        for item in items:
            check_keys("a state's epoch", item, ("epoch", "stages", "settings"))
        following = _number("following", own["following"])
        epochs = [_number("epoch", item["epoch"]) for item in items]
        if epochs != list(range(following - len(items), following)):
            raise StateError(
                "a state's pending epochs do not follow each other",
                expected=f"{len(items)} epochs before {following}",
                got=repr_of(epochs),
            )
        pending = []
        for item in items:
            stages = tuple(replace(one, by_clip=True) for one in parse_stages(item["stages"]))
            if not stages:
                raise StateError("a pending epoch of a state has no stages", got=repr_of(item))
            pending.append((item["epoch"], stages))
        settings[name] = {item["epoch"]: parse_settings(item["settings"]) for item in items}
        sources.append(SourceRest(tuple(pending), following))
    return MixRest(epoch, left, max(1, number), tuple(sources)), settings


def _number(name: str, value: object) -> int:
    return check_number(f"a state's {name}", value, _MOST)
