"""Optional attributes of sources, and the base class of sources that change another one.

A new optional attribute is a row of `OPTIONAL`: sources around another one pass it on where it is
right for both, and readers of originals raise its errors as `SourceError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar

from seqrecord.store.originals.inventory import format_of
from seqrecord.store.originals.protocol import Source


class Scope(IntEnum):
    """Properties that two sources must share, so that an attribute of one is right for the other.

    Each scope includes the scopes before.
    """

    FEATURES = 1  # names and types
    FRAMES = 2  # episodes, and their numbers of frames
    VALUES = 3  # everything


OPTIONAL: Mapping[str, Scope] = {
    "copy_texts": Scope.FEATURES,
    "dictionaries": Scope.FEATURES,
    "features": Scope.FEATURES,
    "has_empty_frames": Scope.FEATURES,
    "palettes": Scope.FEATURES,
    "unreadable": Scope.FEATURES,
    "timestamps": Scope.FRAMES,
    "videos": Scope.FRAMES,
    "account": Scope.VALUES,
    "blocks": Scope.VALUES,
    "content": Scope.VALUES,
    "copied_files": Scope.VALUES,
    "external_files": Scope.VALUES,
    "identity": Scope.VALUES,
    "is_whole": Scope.VALUES,
    "leaving_out": Scope.VALUES,
    "referring": Scope.VALUES,
}
"""Attributes beyond `Source` and `format_name`, without the attributes of `StoredSource`: these
describe chunks that are copied unchanged."""


class SourceWrapper:
    """Base class of sources that change a `source`, with its format.

    They pass on its optional attributes up to the scope `unchanged`, unless they define their own.
    """

    source: Source
    unchanged: ClassVar[Scope]

    @property
    def format_name(self) -> str:
        """Format of `source`."""
        return format_of(self.source)

    def __getattr__(self, name: str) -> Any:
        if name not in OPTIONAL or OPTIONAL[name] > self.unchanged:
            raise AttributeError(name)
        return self.pass_on(name)

    def pass_on(self, name: str) -> Any:
        """Return an optional attribute of `source`. Raises `AttributeError` if it has none."""
        return getattr(self.source, name)
