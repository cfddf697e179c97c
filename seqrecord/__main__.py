"""`python -m seqrecord`, the same as `seqrecord`."""

from seqrecord.cli import main

if __name__ == "__main__":
    main()
