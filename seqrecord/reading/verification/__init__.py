"""verify: reads all of a dataset and collects everything that is wrong with it."""

from seqrecord.reading.verification.verify import (
    VerifyProgress,
    VerifyReport,
    verify,
)

__all__ = [
    "VerifyProgress",
    "VerifyReport",
    "verify",
]
