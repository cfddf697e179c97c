"""The normalization of vectors after a saved state is loaded.

A dataset's statistics change when it grows, so its states have the numbers that a training uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.engine.vectors import VectorSteps
from seqrecord.loader.frames.normalization import Normalization
from seqrecord.loader.pipes.states import Json
from seqrecord.loader.pipes.vectors import normalized
from seqrecord.loader.pipes.view import View
from seqrecord.store.text import repr_of
from seqrecord.store.units import raise_if

_TOLERANCE = 1e-9  # of a scale: machines may add in another order


def steps_of_state(view: View, saved: Json, choice: str | None) -> VectorSteps:
    """The steps of vectors after a state with these normalizations.

    `choice` is the loader's argument `normalization`. Raises `StateError` without it if they
    differ, and with "state" if the state has other features or channels.
    """
    current = view.normalizations
    differing = [n for n in {**current, **saved} if not _are_equal(current.get(n), saved.get(n))]
    if not differing or choice == "stored":
        return view.vectors
    names = ", ".join(differing)
    if choice is None:
        raise StateError(
            f"the saved state has another normalization of {names}, for example because data were "
            "appended",
            file=view.dataset.url,
            expected='normalization="state" of the loader, for the numbers of the state; or '
            'normalization="stored", for its own arguments and the stored statistics',
            got="; ".join(_described(name, saved, current) for name in differing),
        )
    steps, stored = dict(view.vectors), view.dataset.contents.stored_name
    present_names = {stored(name): name for name in steps}
    for name in differing:
        try:
            numbers, present_name = saved[name], present_names[name]
            offset, scale = (np.array(numbers[key], np.float64) for key in ("offset", "scale"))
            normalization = Normalization(numbers["mode"], offset, scale, "the saved state")
            raise_if(name not in current, "the loader does not normalize it")
            steps[present_name] = normalized(steps[present_name], name, normalization)
        except (ClipError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                "the saved state has no usable normalization",
                file=view.dataset.url,
                feature=name,
                expected='the features and channels of the loader; or normalization="stored"',
                got=_described(name, saved, current),
            ) from error
    return steps


def _are_equal(one: Any, two: Any) -> bool:
    try:
        if one is None or two is None or one["mode"] != two["mode"]:
            return one is two
        first, second = (np.array([n["offset"], n["scale"]], np.float64) for n in (one, two))
        if first.shape != second.shape:
            return False
        return bool((abs(first - second) <= _TOLERANCE * first[1]).all())
    except (KeyError, TypeError, ValueError):  # of a damaged state
        return False


def _described(name: str, saved: Json, current: Json) -> str:
    """The offsets of a feature in the state and now."""
    texts = []
    for numbers in (saved.get(name), current.get(name)):
        if isinstance(numbers, dict) and numbers.keys() >= {"mode", "offset"}:
            texts.append(f"{numbers['mode']}, offset {repr_of(numbers['offset'], 60)}")
        else:
            texts.append("none")
    return f"{name}: {texts[0]} in the state, {texts[1]} here"
