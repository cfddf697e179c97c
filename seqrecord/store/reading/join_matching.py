"""Finds the episodes of a companion that belong to the episodes of a dataset.

By the identities that a derived dataset stores, else by key and length. All decisions are per
episode of the dataset: one episode of a companion may have several partners, such as the halves of
an episode that was divided.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from seqrecord.errors import FormatError, JoinError, located
from seqrecord.store.clips.grids import IntArray
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.episode_identity import Identity, chunks_of
from seqrecord.store.reading.joined_index import Partners
from seqrecord.store.text import counted, first_of, shown_place

Check: TypeAlias = Literal["pages", "lengths"]
"""What must be equal in partners: the pages that values were computed from, or the lengths."""

DERIVED_FROM = "derived_from"
"""Key of an episode's metadata: `episode_identity` of the source, and how values were computed."""

_MARK = f'"{DERIVED_FROM}"'  # in the text of metadata
_SHOWN_KEYS = 3

_logger = logging.getLogger("seqrecord")


def find_partners(base: Dataset, companion: Dataset, check: Check) -> Partners:
    """Return the partners of all episodes of `base` in a companion.

    Warns once if they were found by key and length alone. Raises `JoinError` for episodes that have
    changed since their values were computed, and for partners of other lengths.
    """
    identities = _identities(companion)
    if identities is None:
        partners = _by_key(base, companion)
        if (partners.episode >= 0).any():
            _logger.warning(
                "%s: joined to %s by key and length: it stores no identities of its source",
                *(shown_place(companion.url), shown_place(base.url)),
            )
        return partners
    return _Matching(base, companion, identities, check).partners()


def _identities(companion: Dataset) -> dict[int, Identity] | None:
    """Return the stored identities by the companion's episode; `None` if there is none.

    Raises `FormatError` with the episode for an invalid one.
    """
    index = companion.contents.index
    identities = {}
    for number, text in enumerate(index.metadata.to_pylist()):
        if _MARK in text and isinstance(entry := json.loads(text).get(DERIVED_FROM), dict):
            with located(FormatError, file=companion.url, episode=index.key(number)):
                identities[number] = Identity.parse(entry)
    return identities or None


def _by_key(base: Dataset, companion: Dataset) -> Partners:
    """Find partners by key. Raises `JoinError` for other lengths."""
    index, companion_index = base.contents.index, companion.contents.index
    episode = np.full(len(index.num_frames), -1)
    if index.keys.equals(companion_index.keys):
        episode = np.arange(len(episode))
    else:
        positions = companion_index.positions
        episode[:] = [positions.get(key, -1) for key in index.keys.to_pylist()]
    partners = Partners(episode, np.zeros_like(episode))
    rows = np.flatnonzero(episode >= 0)
    rows = rows[companion_index.num_frames[episode[rows]] != index.num_frames[rows]]
    if len(rows):
        _refuse_lengths(base, companion, rows, partners)
    return partners


def _refuse_lengths(base: Dataset, companion: Dataset, rows: IntArray, partners: Partners) -> None:
    index, lengths = base.contents.index, companion.contents.index.num_frames
    row = int(rows[0])
    raise JoinError(
        f"{counted(len(rows), 'episode')} with another number of frames in a companion, which does "
        "not store what it was computed from; trim it as the dataset was, or compute it again",
        file=companion.url,
        episode=index.key(row),
        expected=f"{index.num_frames[row]} frames, as in {shown_place(base.url)}",
        got=int(lengths[partners.episode[row]]),
    )


@dataclass(frozen=True, eq=False)
class _Matching:
    """Episodes of `base`, and the identities that a companion stores for its episodes."""

    base: Dataset
    companion: Dataset
    identities: Mapping[int, Identity]
    check: Check

    def partners(self) -> Partners:
        """Return the partners; see `find_partners`."""
        index = self.base.contents.index
        count = len(index.num_frames)
        partners = Partners(np.full(count, -1), np.zeros(count, np.int64))
        last_to_first = list(self.identities.items())[::-1]  # of equal ones, the first is left
        by_uid = {identity.uid: number for number, identity in last_to_first if identity.uid}
        by_key = {identity.key: number for number, identity in last_to_first}
        reasons: dict[int, str] = {}
        unmatched = []
        for row, (uid, key) in enumerate(
            zip(map(index.uid, range(count)), index.keys.to_pylist(), strict=True)
        ):
            candidates = [by_uid[uid]] if uid in by_uid else []
            candidates += [by_key[key]] if key in by_key and not candidates else []
            if not self._join(partners, row, candidates, reasons):
                unmatched.append(row)
        if unmatched and (by_digest := self._by_digest()):
            for row in unmatched:
                if self._join(partners, row, self._candidates(row, by_digest), {}):
                    reasons.pop(row, None)
        if reasons:
            self._refuse(reasons)
        return partners

    def _join(
        self, partners: Partners, row: int, candidates: Sequence[int], reasons: dict[int, str]
    ) -> bool:
        """Enter the first candidate that fits into row `row` of `partners`; else the reason."""
        for number in candidates:
            match = self._match(row, number)
            if isinstance(match, range):
                partners.episode[row], partners.start[row] = number, match.start
                return True
            reasons.setdefault(row, match)
        return False

    def _match(self, row: int, number: int) -> range | str:
        """Return the companion's frames of an episode, or the reason why it has none."""
        identity, contents = self.identities[number], self.companion.contents
        num_frames, uid = int(contents.index.num_frames[number]), contents.index.uid(number)
        start, stop = contents.trims.get(uid, (0, num_frames))
        if self.check == "lengths":
            frames = int(self.base.contents.index.num_frames[row])
            if frames == num_frames:
                return range(frames)
            if frames == identity.num_frames:
                return range(-start, frames - start)
        if not start and stop != identity.num_frames and uid not in contents.trims:
            return f"its companion has {num_frames} frames, of {identity.num_frames} of the source"
        match = identity.match(self.base.contents, row)
        return match if isinstance(match, str) else range(match.start - start, match.stop - start)

    def _by_digest(self) -> dict[tuple[str, int], list[int]]:
        """Return the companion's episodes by feature and digest of a page."""
        by_digest: dict[tuple[str, int], list[int]] = {}
        for number, identity in self.identities.items():
            for group in identity.groups:
                for name, column in group.digests.items():
                    for digest in np.unique(column[column != 0]).tolist():
                        by_digest.setdefault((name, digest), []).append(number)
        return by_digest

    def _candidates(
        self, row: int, by_digest: Mapping[tuple[str, int], Sequence[int]]
    ) -> list[int]:
        """Return the companion's episodes with a page of an episode, those with most first."""
        votes: dict[int, int] = {}
        for group in chunks_of(self.base.contents, row):
            for name, column in group.digests.items():
                for digest in column.tolist():
                    owners = by_digest.get((name, digest), ())
                    for number in owners if len(owners) <= _MAX_OWNERS else ():
                        votes[number] = votes.get(number, 0) + 1
        return sorted(votes, key=lambda number: (-votes[number], number))[:_MAX_OWNERS]

    def _refuse(self, reasons: Mapping[int, str]) -> None:
        index, reason = self.base.contents.index, next(iter(reasons.values()))
        keys = [index.key(number) for number in list(reasons)[:_SHOWN_KEYS]]
        raise JoinError(
            f"{counted(len(reasons), 'episode')} changed since the companion was computed from "
            f"{'it' if len(reasons) == 1 else 'them'}: compute "
            f"{'it' if len(reasons) == 1 else 'them'} again, or pass check='lengths' to accept "
            "equal numbers of frames",
            file=self.companion.url,
            episode=first_of(keys, _SHOWN_KEYS),
            expected=f"the frames of {shown_place(self.base.url)} that it stores",
            got=reason,
        )


_MAX_OWNERS = 16  # episodes with one page: more say nothing, as of constant masks
