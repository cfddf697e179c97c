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


def stored_identities(
    dataset: Dataset, numbers: npt.NDArray[np.int64] | None = None
) -> dict[int, dict[str, Any]]:
    """Return the identities that a dataset stores of its source, JSON values by episode.

    `numbers` are episodes; by default all.
    """
    identities: dict[int, dict[str, Any]] = {}
    metadata = dataset.contents.index.metadata
    text_buffer = metadata.buffers()[2]  # searched at once: most datasets have none
    if text_buffer is None or not re.search(_MARK.encode(), memoryview(text_buffer)):
        return identities
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
