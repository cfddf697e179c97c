"""Finds the episodes of a companion that belong to the episodes of a dataset.

By the identities that a derived dataset stores, else by key and length. All decisions are per
episode of the dataset: one episode of a companion may have several partners, such as the halves of
an episode that was divided.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.companions.episode_identity import (
    Identity,
    are_groups,
    chunks_of,
    combined_digests,
    equal_pages,
    page_digests,
)
from seqrecord.companions.join_relatives import (
    enter_relatives,
    refuse_other_source,
    refuse_samples,
    stored_identity,
)
from seqrecord.companions.joined_index import Partners
from seqrecord.companions.joined_tables import MatchedByKey
from seqrecord.errors import FormatError, JoinError, located
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import has_identities, stored_identities
from seqrecord.store.reading.opening import Check
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.text import counted, first_of, shown_place

_UID_BYTES = 16
_UID = f"S{_UID_BYTES}"  # compared several times faster than rows of bytes
_MARK = b'"pages":"'  # in the text of metadata, before the uid and digests of an identity
_MARK_BYTES = 49  # which are 32 digits, a colon and 16 digits
_FEW_ROWS = 16  # whose identities are searched for in the text of all
_FEW_EPISODES = 200  # whose identities are parsed in less time
_SEARCHED_PAGES = 8  # of a feature
_SHOWN_KEYS = 3

_logger = logging.getLogger("seqrecord")


def find_partners(base: Dataset, companion: Dataset, check: Check) -> Partners:
    """Return the partners in a companion for all episodes of `base`.

    Warns if they were found by key and length alone, unless this is expected. Raises `JoinError`
    for episodes that have changed since their values were computed, and for other lengths. With
    `check="lengths"`, such episodes need their uid or key and an equal length only, once no pages
    prove where they belong.
    """
    refuse_samples(companion)
    partners = _unchanged(base, companion)
    if (partners.episode >= 0).all():
        return partners
    rows = np.flatnonzero(partners.episode < 0)
    numbers = _related_episodes(base, companion, rows) if len(rows) <= _FEW_ROWS else None
    matching = _Matching(base, companion, stored_identities(companion, numbers), check)
    if base_identities := stored_identities(base):
        enter_relatives(partners, base_identities, base, matching.stored, companion, check)
    if matching.stored:
        matching.enter_equal(partners)
        matching.complete(partners)
    elif (partners.episode < 0).all() and not has_identities(companion):
        is_certain = MatchedByKey in companion.contents.attached
        if base_identities and check == "pages" and not is_certain:
            refuse_other_source(base_identities, base, companion)
        partners = _by_key(base, companion)
        if not is_certain:
            rows = np.flatnonzero(partners.episode >= 0)
            _warn_by_key(base, companion, rows, "it stores no identities of its source")
    return partners


def _warn_by_key(base: Dataset, companion: Dataset, rows: IntArray, reason: str) -> None:
    """Log episodes whose partners have nothing in common with them but a key and a length."""
    if len(rows):
        _logger.warning(
            "%s: joined to %s by key and length alone (%s): %d of %s, for example %s. If episodes "
            "were renumbered or exchanged since, their values are those of other recordings",
            shown_place(companion.url),
            shown_place(base.url),
            reason,
            len(rows),
            counted(len(base.contents.index.num_frames), "episode"),
            first_of(base.contents.index.keys_of(rows[:_SHOWN_KEYS]), _SHOWN_KEYS),
        )


def _unchanged(base: Dataset, companion: Dataset) -> Partners:
    """Return the partners of whole episodes that have not changed since values were computed.

    Their metadata have the uid and the combined digests of their pages: no text is parsed, but that
    of the first episode.
    """
    index, companion_index = base.contents.index, companion.contents.index
    partners = Partners.of_none(len(index.num_frames))
    groups = stored_identity(companion, 0).get("groups")
    if not are_groups(groups):
        return partners
    names = [name for group in groups for name in group["digests"]]
    specs = {base.contents.stored_name(name): spec for name, spec in base.features.items()}
    tables = [index.groups[specs[name].group] for name in names if name in specs]
    if len(tables) < len(names) or any(table.external.any() for table in tables):
        return partners
    numbers, ends = _places_of(_MARK, companion_index.metadata)
    text = _texts_at(companion_index.metadata.buffers()[2], _MARK_BYTES, ends).tobytes()
    colons = b":" * (len(text) // _MARK_BYTES)
    is_valid = text[2 * _UID_BYTES :: _MARK_BYTES] == colons
    if not (text and is_valid and text.translate(None, b"0123456789abcdef") == colons):
        return partners  # the identities are refused when they are parsed
    digits = text.replace(b":", b"").decode()
    stored = np.frombuffer(bytes.fromhex(digits), [("uid", _UID), ("digest", ">u8")])
    rows = _rows_of(np.ascontiguousarray(index.uids).view(_UID)[:, 0], stored["uid"])
    is_same = (rows >= 0) & (index.num_frames[rows] == companion_index.num_frames[numbers])
    if not is_same.all():
        numbers, rows, stored = numbers[is_same], rows[is_same], stored[is_same]
    is_same = combined_digests(base.contents, rows, names) == stored["digest"]
    partners.episode[rows[is_same][::-1]] = numbers[is_same][::-1]  # of several, the first
    return partners


def _related_episodes(base: Dataset, companion: Dataset, rows: IntArray) -> IntArray | None:
    """Return the companion's episodes whose metadata have a uid, key or page of episodes `rows`.

    `None` for all: where there are few. The text is searched, since parsing takes longer.
    """
    metadata = companion.contents.index.metadata
    _, offset_buffer, buffer = metadata.buffers()
    if len(metadata) <= _FEW_EPISODES or buffer is None:
        return None
    index, text, places = base.contents.index, bytes(buffer), list[int]()
    for row in rows.tolist():
        needles = {index.uid(row), json.dumps(index.key(row))}
        for group in chunks_of(base.contents, row):
            for digests in group.to_json()["digests"].values():
                pages = [*page_digests(digests)]
                needles.update(pages[:: max(1, len(pages) // _SEARCHED_PAGES)])
        for needle in needles:
            needle_places, place = list[int](), text.find(needle.encode())
            while place >= 0 and len(needle_places) <= _MAX_OWNERS:
                needle_places.append(place)
                place = text.find(needle.encode(), place + 1)
            if len(needle_places) <= _MAX_OWNERS:  # more prove nothing, as of constant masks
                places += needle_places
    offsets = np.frombuffer(offset_buffer, np.int32)[metadata.offset :][: len(metadata) + 1]
    numbers = np.unique(np.searchsorted(offsets, np.array(places, np.int64), "right") - 1)
    return numbers[(numbers >= 0) & (numbers < len(metadata))]


def _places_of(mark: bytes, texts: pa.StringArray) -> tuple[IntArray, IntArray]:
    """Return the texts with a mark, and where the mark ends in their buffer: int64 [n] each.

    One program writes it at one place of all texts, unless entries before it differ in length: then
    all texts are searched.
    """
    _, offset_buffer, buffer = texts.buffers()
    if buffer is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    place, size = texts[0].as_py().encode().find(mark), len(mark)
    starts = offsets[:-1].astype(np.int64) + place
    numbers = np.flatnonzero((starts + size + _MARK_BYTES <= offsets[1:]) & (place >= 0))
    numbers = numbers[_texts_at(buffer, size, starts[numbers]) == mark]
    if len(numbers) == len(texts):
        return numbers, starts + size
    stop = max(0, int(offsets[-1]) - _MARK_BYTES)
    matches = re.finditer(re.escape(mark), memoryview(buffer)[:stop])
    starts = np.fromiter((match.start() for match in matches), np.int64)
    starts = starts[starts >= offsets[0]]
    return np.searchsorted(offsets, starts, "right") - 1, starts + size


def _texts_at(text: Any, size: int, starts: IntArray) -> npt.NDArray[np.bytes_]:
    """Return `size` bytes of a buffer from each start, as texts: [n]."""
    # Items of one text type at every byte: several times faster than rows of single bytes.
    count = max(0, len(memoryview(text)) - size + 1)
    texts: npt.NDArray[np.bytes_] = np.ndarray((count,), f"S{size}", text, strides=(1,))[starts]
    return texts


def _rows_of(table: npt.NDArray[np.bytes_], uids: npt.NDArray[np.bytes_]) -> IntArray:
    """Return the row of each uid in a table of uids, -1 for none: int64 [n]."""
    if np.array_equal(table, uids):
        return np.arange(len(table))
    order = np.argsort(table, kind="stable")
    places = np.minimum(np.searchsorted(table, uids, sorter=order), len(table) - 1)
    rows: IntArray = np.where(table[order[places]] == uids, order[places], -1)
    return rows


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
    """Episodes of `base`, and the identities that a companion stores, by its episodes."""

    base: Dataset
    companion: Dataset
    stored: Mapping[int, dict[str, Any]]
    check: Check

    def identity(self, number: int) -> Identity:
        """Parse an identity. Raises `FormatError` with the companion's episode."""
        key = self.companion.contents.index.key(number)
        with located(FormatError, file=self.companion.url, episode=key):
            return Identity.parse(self.stored[number])

    def enter_equal(self, partners: Partners) -> None:
        """Enter partners by uid, else by key, whose pages are all equal: many at once, as one by
        one takes seconds for 50,000 episodes.
        """
        by_features: dict[Any, list[tuple[int, int, list[dict[str, Any]]]]] = {}
        for row, number in self._whole_episodes():
            groups = self.stored[number]["groups"]
            if partners.episode[row] < 0:
                group_names = tuple(tuple(group["digests"]) for group in groups)
                by_features.setdefault(group_names, []).append((row, number, groups))
        for group_names, candidates in by_features.items():
            for place, name in ((i, name) for i, names in enumerate(group_names) for name in names):
                column = [groups[place] for _, _, groups in candidates]
                rows = np.array([row for row, _, _ in candidates], np.int64)
                is_equal = equal_pages(self.base.contents, rows, name, column)
                candidates = [item for item, same in zip(candidates, is_equal, strict=True) if same]
            for row, number, _ in candidates[::-1]:
                partners.episode[row] = number

    def _whole_episodes(self) -> Iterator[tuple[int, int]]:
        """Yield candidates with as many frames as their source: its episode, the companion's."""
        index, lengths = self.base.contents.index, self.companion.contents.index.num_frames
        trims, positions = self.base.contents.trims, index.positions
        stored_names = {*map(self.base.contents.stored_name, self.base.features)}
        for number, entry in self.stored.items():
            num_frames, groups = int(lengths[number]), entry.get("groups")
            if entry.get("num_frames") != num_frames or not are_groups(groups):
                continue
            row = self.base.contents.index.positions_by_uid.get(uid := str(entry.get("uid")), -1)
            if row >= 0:
                start = trims.get(uid, (0, 0))[0]
                if entry.get("frames") != [start, start + num_frames]:
                    continue
            elif any(stored_names & group["digests"].keys() for group in groups or ()):
                row = positions.get(str(entry.get("key")), -1)  # a key alone proves nothing
            if row >= 0 and index.num_frames[row] == num_frames:
                yield row, number

    def complete(self, partners: Partners) -> None:
        """Enter the partners that are not there yet; see `find_partners`."""
        index = self.base.contents.index
        last_to_first = list(self.stored.items())[::-1]  # of equal ones, the first is left
        by_uid = {str(entry.get("uid")): number for number, entry in last_to_first}
        by_key = {  # an episode with its uid has another key now
            str(entry.get("key")): number
            for number, entry in last_to_first
            if str(entry.get("uid")) not in self.base.contents.index.positions_by_uid
        }
        reasons: dict[int, str] = {}
        named_partners: dict[int, int] = {}
        unmatched = []
        keys = index.keys.to_pylist()
        for row in np.flatnonzero(partners.episode < 0).tolist():
            number = by_uid.get(index.uid(row), by_key.get(keys[row]))
            if number is not None:
                named_partners[row] = number
            if number is None or not self._join(partners, row, [number], reasons):
                unmatched.append(row)
        for row, candidates in self._owners_of_pages(unmatched).items():
            if self._join(partners, row, candidates, {}):
                reasons.pop(row, None)
        if reasons and self.check == "lengths":
            reasons = self._enter_lengths(partners, {row: named_partners[row] for row in reasons})
        if reasons:
            self._refuse(reasons)

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
        identity, contents = self.identity(number), self.companion.contents
        num_frames, uid = int(contents.index.num_frames[number]), contents.index.uid(number)
        start, stop = contents.trims.get(uid, (0, num_frames))
        if not start and stop != identity.num_frames and uid not in contents.trims:
            return f"its companion has {num_frames} frames, of {identity.num_frames} of the source"
        match = identity.match(self.base.contents, row)
        return match if isinstance(match, str) else range(match.start - start, match.stop - start)

    def _enter_lengths(self, partners: Partners, candidates: Mapping[int, int]) -> dict[int, str]:
        """Enter candidates with as many frames as the episode, or as its source had.

        Warns of those that were found by key. Returns the reasons of others.
        """
        base_index, companion_index = self.base.contents.index, self.companion.contents.index
        reasons: dict[int, str] = {}
        found_by_key = []
        for row, number in candidates.items():
            frames, num_frames = (
                int(base_index.num_frames[row]),
                int(companion_index.num_frames[number]),
            )
            identity, uid = self.identity(number), companion_index.uid(number)
            if frames not in (num_frames, identity.num_frames):
                reasons[row] = f"{frames} frames, and {num_frames} of the companion"
                continue
            trim_start = self.companion.contents.trims.get(uid, (0, num_frames))[0]
            partners.episode[row] = number
            partners.start[row] = 0 if frames == num_frames else -trim_start
            if identity.uid != base_index.uid(row):
                found_by_key.append(row)
        rows = np.array(found_by_key, np.int64)
        _warn_by_key(self.base, self.companion, rows, "check='lengths', and no equal pages")
        return reasons

    def _owners_of_pages(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """Return the companion's episodes with pages of episodes `rows`, those with most first."""
        rows_by_page: dict[tuple[str, str], list[int]] = {}
        for row in rows:
            for group in chunks_of(self.base.contents, row):
                for name, digests in group.to_json()["digests"].items():
                    for digest in {*page_digests(digests)}:
                        rows_by_page.setdefault((name, digest), []).append(row)
        votes: dict[int, Counter[int]] = {row: Counter() for row in rows}
        for number, entry in self.stored.items() if rows else ():
            for group in entry["groups"] if are_groups(entry.get("groups")) else ():
                for name, digests in group["digests"].items():
                    for digest in page_digests(str(digests)):
                        for row in rows_by_page.get((name, digest), ())[:_MAX_OWNERS]:
                            votes[row][number] += 1
        return {
            row: [number for number, _ in counts.most_common(_MAX_OWNERS)]
            for row, counts in votes.items()
        }

    def _refuse(self, reasons: Mapping[int, str]) -> None:
        index, reason = self.base.contents.index, next(iter(reasons.values()))
        keys = [index.key(number) for number in list(reasons)[:_SHOWN_KEYS]]
        raise JoinError(
            f"{counted(len(reasons), 'episode')} changed since the companion was computed from "
            f"{'it' if len(reasons) == 1 else 'them'}: compute the companion again",
            file=self.companion.url,
            episode=first_of(keys, _SHOWN_KEYS),
            expected=f"the frames of {shown_place(self.base.url)} that it stores",
            got=reason,
        )


_MAX_OWNERS = 16  # episodes with one page: more prove nothing, as of constant masks
