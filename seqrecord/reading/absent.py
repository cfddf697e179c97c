"""Features that were added or dropped when record files were there already.

A record file says which features it was written with. Those of the dataset continue these: some may
have been dropped since, and others added behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.gops import MAX_GOP_FRAMES
from seqrecord.errors import FormatError
from seqrecord.format import Footer
from seqrecord.format.rows import GAP_ROW, MAX_CHUNK_FRAMES, WORD, chunk_row
from seqrecord.schema import Schema

__all__ = ["absent_chunks", "conformed"]

_logger = logging.getLogger("seqrecord")


def conformed(
    footers: Sequence[tuple[str, Footer]],
    schema: Schema | None = None,
    committed: Collection[str] = (),
) -> tuple[Schema | None, list[tuple[str, Footer]]]:
    """The schema of a dataset, and those of its record files that are of it, with their paths.

    Without `schema` it is the longest of those files that have chunks of the first group. What an
    interrupted edit has left of a feature that is in no dataset is left out, and named in the log:
    a file without chunks of the first group that is not `committed`. Raises `FormatError` for any
    other file whose schema the dataset's does not continue.
    """
    if schema is None:
        whole = [footer.schema for _, footer in footers if len(footer.chunks[0])]
        schema = max(whole, key=len, default=footers[0][1].schema if footers else None)
    if schema is None:
        return None, []
    found = []
    for path, footer in footers:
        if schema.continues(footer.schema):
            found.append((path, _renamed(footer, schema)))
        elif len(footer.chunks[0]) or path in committed:
            pairs = zip_longest(schema.values(), footer.schema.values())
            want, got = next((want, got) for want, got in pairs if want != got)
            raise FormatError(
                "record files of different schemas",
                file=path,
                expected=want.to_json() if want else "no more",
                got=got.to_json() if got else None,
            )
        else:
            _logger.warning("%s: left out: of a feature that was not added to the end", path)
    return schema, found


def _renamed(footer: Footer, schema: Schema) -> Footer:
    """The footer with lags of the features that are still there; a name may be another's now."""
    now = dict(zip(footer.schema, schema, strict=False))
    if all(name == new for name, new in now.items()):
        return footer
    episodes = [
        replace(part, lags=tuple((name, lags) for name, lags in part.lags if now[name] == name))
        for part in footer.episodes
    ]
    return replace(footer, episodes=tuple(episodes))


def absent_chunks(
    files: npt.NDArray[np.int64],
    chunks: npt.NDArray[Any],
    schema: Schema,
    features: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Files, chunk rows and gap rows of a group of which no frame of an episode has a feature.

    They lie, and end, where those of another group do: these are its `chunks`, in `files`. `schema`
    is that of the absent group, and `features` are the places of its features.
    """
    most = MAX_GOP_FRAMES if any(s.is_video for s in schema.values()) else MAX_CHUNK_FRAMES
    held = chunks["num_frames"].astype(np.int64)
    pieces = -(-held // most)
    source = np.repeat(np.arange(len(chunks)), pieces)
    within = (np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * most
    rows = np.zeros(len(source), chunk_row(len(schema), len(schema.variable)))
    rows["offset"] = chunks["offset"][source]
    rows["first_frame"] = chunks["first_frame"][source] + within
    rows["num_frames"] = np.minimum(held[source] - within, most)
    words = -(-rows["num_frames"].astype(np.int64) // WORD)
    count = words * len(features)
    gaps = np.zeros(int(count.sum()), GAP_ROW)
    chunk = np.repeat(np.arange(len(rows)), count)
    at = np.arange(len(gaps)) - np.repeat(np.cumsum(count) - count, count)
    gaps["chunk"] = chunk
    gaps["feature"] = features[at // words[chunk]] if len(at) else 0
    gaps["word"] = at % words[chunk]
    return files[source], rows, gaps
