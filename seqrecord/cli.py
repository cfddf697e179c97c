"""The command line. Each command calls one public function and prints its report."""

from seqrecord.tools.cli.group import main

__all__ = ["main"]
