"""Identity of episodes: a digest of their contents, whatever else the dataset contains."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import IntArray, numbered
from seqrecord.reading.dataset import Dataset

_EPISODES_AT_ONCE = 1 << 12  # of which chunks are hashed together


def identity_of(dataset: Dataset, episodes: IntArray) -> dict[str, Any]:
    """Identity of episodes, given by their rows, as JSON.

    The digest covers keys, lengths, and pages of the dataset's features. It does not depend on the
    episodes' places in the dataset, since an order is that of a selection, nor on the paths of
    referenced files.
    """
    contents, index = dataset.contents, dataset.contents.index
    keys = index.keys.take(episodes).to_pylist()
    digest = hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode())
    update(digest, "<i8", index.num_frames[episodes])
    for number in sorted({spec.group for spec in dataset.features.values()}):
        group = index.groups[number]
        columns = [group.schema.position(n) for n in group.schema if n in dataset.features]
        for some in np.array_split(episodes, 1 + len(episodes) // _EPISODES_AT_ONCE):
            owner, place = numbered(group.num_chunks[some])
            chunks = group.first_chunk[some][owner] + place
            sums = contents.chunks.lasting_sums(group, chunks)
            tables = group.page_length[chunks][:, columns], sums[:, columns]
            update(digest, "<u4", group.num_frames[chunks], *tables)
    for number, name in enumerate(sorted(dataset.features, key=contents.stored_name)):
        gaps = contents.missing_frames([name])
        gaps = gaps.taken(np.isin(gaps.episode, episodes))
        place = np.searchsorted(episodes, gaps.episode)
        update(digest, "<i8", np.full(len(gaps), number), place, gaps.start, gaps.stop)
    return {
        "count": len(episodes),
        "frames": int(index.num_frames[episodes].sum()),
        "digest": digest.hexdigest(),
        "dataset": dataset.fingerprint,
    }


def update(digest: Any, dtype: str, *arrays: npt.NDArray[Any]) -> None:
    """Add arrays to a digest, as values of a dtype."""
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype).data)
