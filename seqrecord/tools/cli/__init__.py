"""The command line: each command calls one public function and prints what it says."""

from seqrecord.tools.cli.commands import (
    main,
)

__all__ = [
    "main",
]
