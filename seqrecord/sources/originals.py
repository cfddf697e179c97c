"""What sources of folders and files have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from seqrecord.sources.files import find_original, find_root

__all__ = ["Originals"]


@dataclass(frozen=True)
class Originals:
    """Originals at `root`, a folder or, where `takes_files`, a file.

    `features` are the names to read, in that order, by default all. With `keep_encoded` images stay
    encoded, where the format has any. Pickles hold nothing of what is named in `unpickled`.
    """

    root: str | os.PathLike[str]
    features: Sequence[str] | None = None
    keep_encoded: bool = False

    takes_files: ClassVar[bool] = False
    unpickled: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        find = find_original if self.takes_files else find_root
        object.__setattr__(self, "root", find(self.root))
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))

    @property
    def path(self) -> Path:
        """`root`, as a path."""
        return Path(self.root)

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in self.unpickled}
