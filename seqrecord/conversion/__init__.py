"""convert: packs a source into a dataset, on many processes."""

from seqrecord.conversion.convert import (
    BadEpisode,
    ConvertReport,
    Progress,
    convert,
)

__all__ = [
    "BadEpisode",
    "ConvertReport",
    "Progress",
    "convert",
]
