"""Exports of datasets: files, LeRobot datasets, the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.formats.export.files import to_files as to_files
    from seqrecord.formats.export.hub import HubPush as HubPush
    from seqrecord.formats.export.hub import to_hub as to_hub
    from seqrecord.formats.export.lerobot import to_lerobot as to_lerobot

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
