"""Runs the command line: `python -m seqrecord`."""

from seqrecord.cli import main

if __name__ == "__main__":
    main()
