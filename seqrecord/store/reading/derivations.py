"""Entries of derived episodes: what each stores in its metadata about its source."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, located
from seqrecord.store.format.text import parse_metadata
from seqrecord.store.reading.dataset import Dataset

DERIVED_FROM = "derived_from"
"""Key of an episode's metadata: `episode_identity` of the source, and how values were computed."""

_MARK = f'"{DERIVED_FROM}"'  # in the text of metadata


def has_identities(dataset: Dataset) -> bool:
    """Whether an episode of a dataset stores the identity of its source."""
    text_buffer = dataset.contents.index.metadata.buffers()[2]
    return text_buffer is not None and bool(re.search(_MARK.encode(), memoryview(text_buffer)))


def stored_identities(
    dataset: Dataset, numbers: npt.NDArray[np.int64] | None = None
) -> dict[int, dict[str, Any]]:
    """Return the identities that a dataset stores of its source, JSON values by episode.

    `numbers` are episodes; by default all.
    """
    identities: dict[int, dict[str, Any]] = {}
    if not has_identities(dataset):  # their text is searched at once: most datasets have none
        return identities
    metadata = dataset.contents.index.metadata
    episodes = np.arange(len(metadata)) if numbers is None else numbers
    texts = (metadata if numbers is None else metadata.take(numbers)).to_pylist()
    for number, text in zip(episodes.tolist(), texts, strict=True):
        if _MARK not in text:
            continue
        with located(FormatError, file=dataset.url, episode=dataset.contents.index.key(number)):
            entry = parse_metadata(text).get(DERIVED_FROM)
        if isinstance(entry, dict):
            identities[number] = entry
    return identities
