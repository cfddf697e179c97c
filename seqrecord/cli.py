"""The command line. Each command calls one public function and prints its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.tools.cli.group import main as main

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
