"""Whether a saved state is of the clips, and of the order, that a loader was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from seqrecord.errors import StateError
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.states import State
from seqrecord.text import repr_of

__all__ = ["check_state"]


def check_state(
    state: State,
    asked: Mapping[str, Any],
    request: Mapping[str, Any],
    *,
    num_cursors: int | None,
    selection: ClipSelection,
) -> None:
    """Raise `StateError` for a state of other clips or another order, and say what differs.

    `asked` are the settings of plans, and `request` what else was asked for: see
    `ClipLoader.check_state`.
    """
    url, identity = selection.dataset.url, selection.identity
    saved, now = asdict(state.settings), dict(asked)
    for of_stage in (state.later, *(stage.settings for stage in state.stages)):
        other = saved if of_stage is None else asdict(of_stage)
        free = {"batch_size"} if saved["shuffle"] else {"batch_size", "seed"}
        differ = [name for name in asked if name not in free and other[name] != saved[name]]
        if differ:
            raise StateError(
                f"stages of the saved state are of several settings: {', '.join(differ)}",
                file=url,
                expected=", ".join(f"{name}={repr_of(saved[name])}" for name in differ),
                got=", ".join(f"{name}={repr_of(other[name])}" for name in differ),
            )
    if state.sharing.worker is None:
        del now["batch_size"]
    if num_cursors is not None:
        now["num_cursors"] = num_cursors
    request = dict(request)
    if request["shuffle_buffer"] is None:
        del request["shuffle_buffer"]
    saved, now = {**state.request, **saved}, {**request, **now}
    if not asked["shuffle"] and saved["shuffle"] is False:
        for name in ("seed", "num_cursors", "shuffle_buffer"):
            if name != "seed" or not selection.differs_by_epoch:
                now.pop(name, None)
    differ = [name for name in now if name not in saved or saved[name] != now[name]]
    if "features" in differ and "frame_transform" in differ:
        differ.remove("frame_transform")  # its arrays are the features
    if differ:
        hint = ""
        if differ == ["batch_size"]:
            hint = "; seqrecord.elastic_state makes of it one for any batch_size"
        raise StateError(
            f"the saved state is of other settings: {', '.join(differ)}{hint}",
            file=url,
            expected=", ".join(f"{name}={now[name]!r}" for name in differ),
            got=", ".join(f"{name}={repr_of(saved.get(name))}" for name in differ),
        )
    if state.episodes["digest"] != identity["digest"]:
        same = state.episodes["dataset"] == identity["dataset"]
        raise StateError(
            "the saved state is of other episodes of this dataset"
            if same
            else "the saved state is of another dataset, or this one has changed: select the "
            "state's episodes, if they are still the same",
            file=url,
            expected=_describe(identity),
            got=_describe(state.episodes),
        )


def _describe(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (repr_of(episodes[name]) for name in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"
