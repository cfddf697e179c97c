"""Episodes of a dictionary: the key and metadata of a text's value; see docs/format.md."""

from __future__ import annotations

import hashlib

from seqrecord.store.format.index import Index

TEXT, FEATURE = "text", "feature"
"""Metadata entries of a value's episode: its text, and the feature of such texts."""

_KEY_DIGITS = 32  # of docs/format.md: 128 bits, so that no two texts have the same key


def key_of_text(text: str) -> str:
    """Return the key of a text's episode."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_KEY_DIGITS]


def feature_of_texts(index: Index) -> str | None:
    """Return the text feature that the first value of a dictionary names, if it does."""
    feature = index.episode_metadata(0).get(FEATURE)
    return feature if isinstance(feature, str) else None
