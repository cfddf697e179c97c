"""Whether all ranks begin an iteration in the same place of the same order.

The first rank writes its position to the store of `torch.distributed`; the others compare theirs
with it. Nobody waits: a rank may iterate alone, or never.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed import distributed_c10d

from seqrecord.errors import StateError
from seqrecord.pipes.places import Place, state_at
from seqrecord.pipes.states import BatchSource
from seqrecord.text import repr_of

_OF_A_KIND = ("features", "clip_len", "windows")  # another loader, where these differ
_numbers: WeakKeyDictionary[object, str] = WeakKeyDictionary()  # names of loaders in this process
_loaders: Counter[str] = Counter()  # of a kind


def check_ranks_agree(
    epochs: object, loader: BatchSource[Any], place: Place, batch: int, iteration: str
) -> None:
    """Raise `StateError` if the rank that came first to an iteration of `epochs` began elsewhere.

    Ranks number their loaders of a kind, as they begin. Where ranks were given, groups of them may
    have loaders of their own, and only epoch and batch are compared.
    """
    if not loader.ranks.in_process_group or place.sharing is None:
        return
    sharing = replace(place.sharing, worker=None)
    said: dict[str, Any] = state_at(loader, place.epoch, batch, sharing, place.rest).to_json()
    requests = [source["request"] for source in said["sources"]]
    kind: Any = [[request[name] for name in _OF_A_KIND] for request in requests]
    if loader.ranks.are_given:
        kind = said["sources"], said["asked"]
    digest = sha256(json.dumps([said["sharing"]["ranks"], kind]).encode()).hexdigest()[:16]
    if epochs not in _numbers:
        _numbers[epochs] = f"{digest}/{_loaders[digest]}"
        _loaders[digest] += 1
    store, key = distributed_c10d._get_default_store(), f"seqrecord/{_numbers[epochs]}/{iteration}"
    first = json.loads(store.compare_set(key, "", json.dumps(said)))
    if differ := [*_differences(first, said)]:
        raise StateError(
            "the ranks begin an iteration in different places, or in different orders",
            expected=", ".join(f"{name}={repr_of(theirs)}" for name, theirs, _ in differ),
            got=", ".join(f"{name}={repr_of(own)}" for name, _, own in differ)
            + "; give all ranks the same arguments, set_epoch and state; give world_size=1 to a "
            "loader that only some ranks iterate over",
        )


def _differences(theirs: Any, own: Any, name: str = "state") -> list[tuple[str, Any, Any]]:
    """Name and both values of what differs."""
    if isinstance(theirs, dict) and isinstance(own, dict):
        names = {**theirs, **own}
        pairs = [(n, theirs.get(n), own.get(n)) for n in names]
    elif isinstance(theirs, list) and isinstance(own, list) and len(theirs) == len(own):
        pairs = [(name, *pair) for pair in zip(theirs, own, strict=True)]
    else:
        return [(name, theirs, own)] if theirs != own else []
    return [found for n, a, b in pairs for found in _differences(a, b, n)]
