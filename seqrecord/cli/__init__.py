"""The command line: each command calls one public function and prints what it says."""

from seqrecord.cli.group import main

__all__ = ["main"]
