"""numcodecs, without its advice on which package it should take CRC32C from: we take none.

It would tell everyone who has the package that we do use, and its filter lets nobody else's
filter keep it from that.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings(record=True) as _caught:
    import numcodecs
    import numcodecs.blosc
    from numcodecs.abc import Codec
    from numcodecs.registry import register_codec

for _warning in _caught:
    if not str(_warning.message).startswith("crc32c usage is deprecated"):
        warnings.warn_explicit(
            _warning.message, _warning.category, _warning.filename, _warning.lineno
        )

__all__ = ["Codec", "numcodecs", "register_codec"]
