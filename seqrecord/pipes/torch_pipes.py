"""What torch's pipes down a chain are spared, where it would take longer than their work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Shuffler

__all__ = ["hide_items", "spare_lookups"]

_IS_CHILD = "_is_child_datapipe"


def spare_lookups(chain: Iterable[object]) -> None:
    """Have torch find what it looks for at every item of these pipes, if they are its own.

    It asks each pipe whether it is one of several that read one source. Where a pipe has no such
    attribute, `IterDataPipe.__getattr__` makes an error, which takes longer than all else that
    torch does for an item.
    """
    for pipe in chain:
        if type(pipe).__module__.startswith("torch.") and not hasattr(pipe, _IS_CHILD):
            setattr(pipe, _IS_CHILD, False)


def hide_items(chain: Iterable[object]) -> None:
    """Have torch not look for pipes in the clips that a `.shuffle()` of these pipes holds.

    When a DataLoader begins an epoch, torch finds the pipes of a chain by pickling each, and drops
    what that makes. A `.shuffle()` is pickled with its items, which it still has where the epoch
    before was left early; and of a clip that lies in the memory of a batch, all of that is pickled.
    """
    for pipe in chain:
        if type(pipe) is Shuffler and type(getattr(pipe, "_buffer", None)) is list:
            pipe._buffer = _Hidden(pipe._buffer)


class _Hidden(list[Any]):
    """Items that are pickled and copied as those of any list, but not where pipes are sought."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As `IterDataPipe` finds out; torch sets the hook while it looks for pipes.
        if IterDataPipe.reduce_ex_hook is not None:
            return list, ()
        return list, (list(self),)
