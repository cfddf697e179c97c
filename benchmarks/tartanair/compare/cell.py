"""One row to measure: a loader and its settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.tartanair.loaders.base import USUAL, Settings

__all__ = ["Cell", "differing"]


@dataclass(frozen=True)
class Cell:
    """One row to measure."""

    loader: str
    settings: Settings

    @property
    def key(self) -> str:
        """The same for the same cell in another run."""
        said = json.dumps([self.loader, asdict(self.settings)], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The loader and what differs from the defaults."""
        return f"{self.loader} {differing(self.settings)}".rstrip()


def differing(settings: Settings, base: Settings = USUAL) -> str:
    """What is not as in `base`, in words."""
    return " ".join(
        f"{field.name}={_shown(getattr(settings, field.name))}"
        for field in fields(Settings)
        if getattr(settings, field.name) != getattr(base, field.name)
    )


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)
