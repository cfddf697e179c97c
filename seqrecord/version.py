"""Version of the package."""

__version__ = "0.1.0"

CREATED_BY = f"seqrecord {__version__}"
