"""`python -m seqrecord`, the same as `seqrecord`."""

from seqrecord.tools.cli import main

if __name__ == "__main__":
    main()
