"""Joins of a derived dataset with its source, or with another dataset derived from that.

Frames are counted in the source episode, as both identities do::

    source               | s s s s s s s s |
    derived dataset          | d d d d |            frames [2, 6) of the source
    companion            | c c c c c c |            frames [0, 6): frame 2 belongs to frame 0
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from seqrecord.companions.episode_identity import Identity
from seqrecord.companions.joined_index import Partners
from seqrecord.errors import FormatError, JoinError, located
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import DERIVED_FROM
from seqrecord.store.reading.opening import Check
from seqrecord.store.text import shown_place

Identities = Mapping[int, dict[str, Any]]


def stored_identity(dataset: Dataset, number: int) -> dict[str, Any]:
    """Return the identity that an episode stores of its source, JSON values; empty for none."""
    entry = dataset.contents.index.episode_metadata(number).get(DERIVED_FROM)
    return entry if isinstance(entry, dict) else {}


def refuse_samples(companion: Dataset) -> None:
    """Raise `JoinError` for a companion with values of samples: its frames are no frames."""
    index = companion.contents.index
    if stored_identity(companion, 0).get("per") == "sample":
        raise JoinError(
            "a companion with values per sample, which cannot be joined to frames: derive it "
            "without samples, windows and clip_len, or pass its columns as samples=",
            file=companion.url,
            episode=index.key(0),
            expected="values per frame",
            got="values per sample",
        )


def refuse_other_source(identities: Identities, base: Dataset, companion: Dataset) -> None:
    """Raise `JoinError` for a companion with the features that `base` was computed from.

    None of its episodes has their frames: it is another copy of the source, or renumbered.
    """
    names = {companion.contents.stored_name(name) for name in companion.features}
    row, entry = next(iter(identities.items()))
    if source_names := sorted(names & _parsed(entry, base, row).names):
        raise JoinError(
            "no episode of a companion has the frames that the dataset was computed from: compute "
            "the dataset again",
            file=companion.url,
            episode=base.contents.index.key(row),
            feature=source_names[0],
            expected=f"the frames from which {shown_place(base.url)} was computed",
        )


def enter_relatives(
    partners: Partners,
    base_identities: Identities,
    base: Dataset,
    identities: Identities,
    companion: Dataset,
    check: Check,
) -> None:
    """Enter partners of a derived dataset: episodes of its source, or derived from the same ones.

    Raises `JoinError` for an episode of the source that changed since values were computed, unless
    `check` is `"lengths"`.
    """
    ignored_errors = () if check == "pages" else (JoinError,)
    index = companion.contents.index
    entries = list(identities.items())[::-1]  # of equal ones, the first is left
    by_uid = {str(entry["uid"]): number for number, entry in entries if "uid" in entry}
    by_key = {str(entry.get("key")): number for number, entry in entries if "uid" not in entry}
    sources = index.positions_by_uid
    for row, entry in base_identities.items():
        if partners.episode[row] >= 0:
            continue
        start, uid, key = None, str(entry.get("uid")), str(entry.get("key"))
        with suppress(*ignored_errors):
            if (number := by_uid.get(uid, by_key.get(key, -1))) >= 0:
                start = _start_in_sibling(entry, base, row, identities[number], companion, number)
            elif (number := sources.get(uid, index.positions.get(key, -1))) >= 0:
                is_known = uid in sources
                start = _start_in_source(entry, base, row, companion, number, is_known=is_known)
        if start is not None:
            partners.episode[row], partners.start[row] = number, start


def _first_frame(dataset: Dataset, number: int, num_frames: int) -> int | None:
    """Return the frame of an identity that a derived episode begins with; `None` if unknown."""
    index, trims = dataset.contents.index, dataset.contents.trims
    start, stop = trims.get(index.uid(number), (0, int(index.num_frames[number])))
    is_known = index.uid(number) in trims or stop == num_frames
    return start if is_known else None


def _parsed(entry: dict[str, Any], dataset: Dataset, number: int) -> Identity:
    with located(FormatError, file=dataset.url, episode=dataset.contents.index.key(number)):
        return Identity.parse(entry)


def _start_in_sibling(
    entry: dict[str, Any],
    base: Dataset,
    row: int,
    companion_entry: dict[str, Any],
    companion: Dataset,
    number: int,
) -> int | None:
    """Return the companion's frame for frame 0 of an episode; `None` for other sources."""
    identity = _parsed(entry, base, row)
    companion_identity = _parsed(companion_entry, companion, number)
    if companion_identity.uid is None and not identity.names & companion_identity.names:
        return None  # found by its key, which alone proves nothing
    first = _first_frame(base, row, identity.num_frames)
    companion_first = _first_frame(companion, number, companion_identity.num_frames)
    if first is None or companion_first is None:
        return None
    shift = identity.start - companion_identity.start
    if not identity.agrees(companion_identity, shift):
        raise JoinError(
            "two datasets were computed from different frames of an episode: compute one again",
            file=companion.url,
            episode=base.contents.index.key(row),
            expected=f"the frames from which {shown_place(base.url)} was computed",
        )
    return shift + first - companion_first


def _start_in_source(
    entry: dict[str, Any],
    base: Dataset,
    row: int,
    companion: Dataset,
    number: int,
    *,
    is_known: bool,
) -> int | None:
    """Return the source's frame for frame 0 of an episode; `None` if it is not the source.

    `is_known`: it has the uid of the source.
    """
    identity = _parsed(entry, base, row)
    first = _first_frame(base, row, identity.num_frames)
    match = identity.match(companion.contents, number)
    if first is None or not isinstance(match, range):
        if is_known and isinstance(match, str):
            raise JoinError(
                "an episode of a companion changed since the dataset was computed from it: compute "
                "the dataset again",
                file=companion.url,
                episode=base.contents.index.key(row),
                expected=f"the frames from which {shown_place(base.url)} was computed",
                got=match,
            )
        return None
    return first - match.start
