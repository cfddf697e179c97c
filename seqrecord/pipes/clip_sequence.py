"""The clips of one call: a batch already, from which single clips are made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

__all__ = ["ClipSequence"]


class ClipSequence(Sequence[dict[str, Any]]):
    """Clips, each a dict, as a list has them. `collate` takes the whole batch if nobody had a clip.

    Args:
        count: how many clips there are.
        batch: makes the batch.
        single: makes the clips, all of them, on the same memory.
    """

    def __init__(
        self,
        count: int,
        batch: Callable[[], dict[str, Any]],
        single: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._count = count
        self._batch = batch
        self._single = single
        self._clips: list[dict[str, Any]] | None = None

    def whole(self) -> dict[str, Any] | None:
        """The batch; `None` once clips were given out, which their user may have changed."""
        return self._batch() if self._clips is None else None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if self._clips is None:
            self._clips = self._single()
        return self._clips[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} clips)"
