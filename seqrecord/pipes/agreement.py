"""Whether all ranks begin an iteration in the same place of the same order.

The first rank writes its position to the store of `torch.distributed`; the others compare theirs
with it. Nobody waits: a rank may iterate alone, or never.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed import PrefixStore, distributed_c10d

from seqrecord.errors import StateError
from seqrecord.pipes.states import State
from seqrecord.text import repr_of

_OF_A_KIND = ("features", "clip_len", "windows")  # another loader, where these differ
_numbers: WeakKeyDictionary[object, str] = WeakKeyDictionary()  # names of loaders in this process
_loaders: Counter[str] = Counter()  # of a kind


def check_ranks_agree(loader: object, state: State, iteration: str) -> None:
    """Raise `StateError` if the rank that came first to an iteration of `loader` had another state.

    Ranks number their loaders of a kind, as they begin.
    """
    said: dict[str, Any] = state.to_json()
    requests = [source["request"] for source in said["sources"]]
    kind = [[request[name] for name in _OF_A_KIND] for request in requests]
    digest = sha256(json.dumps([said["sharing"]["ranks"], kind]).encode()).hexdigest()[:16]
    if loader not in _numbers:
        _numbers[loader] = f"{digest}/{_loaders[digest]}"
        _loaders[digest] += 1
    store = PrefixStore("seqrecord", distributed_c10d._get_default_store())
    first = json.loads(store.compare_set(f"{_numbers[loader]}/{iteration}", "", json.dumps(said)))
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
