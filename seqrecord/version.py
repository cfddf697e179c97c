"""The package's version, in one place."""

__all__ = ["CREATED_BY", "__version__"]

__version__ = "0.1.0"

CREATED_BY = f"seqrecord {__version__}"
