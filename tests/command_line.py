"""The command line: `main` for this process, `COMMAND` to start one of its own."""

from __future__ import annotations

import sys

from seqrecord.tools.cli import main

__all__ = ["COMMAND", "main"]

COMMAND = [sys.executable, "-m", "seqrecord"]
