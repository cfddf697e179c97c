"""Comparison of positions between ranks, through the store of `torch.distributed`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed import distributed_c10d

from seqrecord.pipes.iterations import BatchSource
from seqrecord.pipes.places import Place, state_at
from seqrecord.pipes.states import check_same

_OF_A_KIND = ("features", "clip_len", "windows")  # another loader, where these differ
_names: WeakKeyDictionary[object, str] = WeakKeyDictionary()  # of loaders, the same on all ranks
_loaders: Counter[str] = Counter()  # of a kind, in this process


def check_agreement(epochs: object, loader: BatchSource, place: Place, iteration: str) -> None:
    """Raise `StateError` if another rank begins an iteration of `epochs` at another place.

    The first rank writes its state to the store of `torch.distributed`; the others compare theirs.
    Nobody waits: a rank may iterate alone, or never. Ranks number their loaders of a kind, as they
    begin. Where ranks were given, groups of them may have loaders of their own, and only epoch and
    batch are compared.
    """
    place = place._replace(sharing=replace(place.sharing, worker=None))
    state = state_at(loader, place).to_json()
    kind: Any = [[source["request"][name] for name in _OF_A_KIND] for source in state["sources"]]
    if loader.ranks.given is not None:
        kind = state["sources"], state["shared_arguments"]
    digest = sha256(json.dumps([place.sharing.ranks, kind]).encode()).hexdigest()[:16]
    if epochs not in _names:
        _names[epochs] = f"{digest}/{_loaders[digest]}"
        _loaders[digest] += 1
    store, key = distributed_c10d._get_default_store(), f"seqrecord/{_names[epochs]}/{iteration}"
    first = json.loads(store.compare_set(key, "", json.dumps(state)))
    problem = (
        "the ranks begin an iteration in different places, or in different orders (give all ranks "
        "the same arguments, set_epoch and state; world_size=1 to a loader of some ranks alone)"
    )
    differ = _differences(first, state)
    theirs, own = {n: one for n, one, _ in differ}, {n: one for n, _, one in differ}
    check_same(problem, theirs, own, own)


def _differences(theirs: Any, own: Any, name: str = "state") -> list[tuple[str, Any, Any]]:
    """Name and both values of each difference."""
    if isinstance(theirs, dict) and isinstance(own, dict):
        pairs = [(n, theirs.get(n), own.get(n)) for n in {**theirs, **own}]
    elif isinstance(theirs, list) and isinstance(own, list) and len(theirs) == len(own):
        pairs = [(name, *pair) for pair in zip(theirs, own, strict=True)]
    else:
        return [(name, theirs, own)] if theirs != own else []
    return [found for n, a, b in pairs for found in _differences(a, b, n)]
