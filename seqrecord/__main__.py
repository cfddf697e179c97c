"""Runs the command line: `python -m seqrecord`."""

from __future__ import annotations

import sys

from seqrecord.errors import MissingPackageError


def run() -> None:
    """Run the command line; without its part `tools`, print one line and exit with code 1."""
    try:
        from seqrecord.cli import main
    except MissingPackageError as error:
        sys.exit(f"seqrecord: error: {error}")
    main()


if __name__ == "__main__":
    run()
