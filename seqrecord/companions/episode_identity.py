"""What an episode consisted of when values were computed from it, and which of it is left.

A dataset of derived values (latents, labels) stores the identity of each source episode in its
metadata. It survives edits of the source: the uid of an episode is kept by renames, trims and
rewritten record files; the digests of its pages also by merges and copies. A trim is found as the
place of the present chunks among those of the identity::

    identity     | a a a a | b b b b | c c c c | d d |
    present            [ a | b b b b | c c ]                range(3, 10)

Of originals in place, neither uids nor digests of references are stored, which an index made on
another day or machine does not have: the digests of their content are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.store.json_object import JsonObject
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import IntArray, ragged_arange

_DIGEST_BYTES = 8  # of the 16 in the index: an identity with 10 chunks of 3 features has 0.5 KB
_HEX = re.compile(rf"([0-9a-f]{{{2 * _DIGEST_BYTES}}})*")
_ID = re.compile(r"[0-9a-f]{32}")
_PAGES = re.compile(r"[0-9a-f]{32}:[0-9a-f]{16}")
_KEY = re.compile(r"[^\x00-\x1f]{1,4096}")
_MAX_FRAMES = 2**31


def episode_identity(dataset: Dataset, number: int) -> dict[str, Any]:
    """Return the identity of the dataset's episode `number`, JSON values, for `match_identity`.

    Covers the selected features only: values depend on no others. Has about 20 bytes for each page.
    Of originals in place, reads the references and, of files with items of one size, samples.
    """
    contents = dataset.contents
    index, manifest = contents.index, contents.manifest
    frames, uid = int(index.num_frames[number]), index.uid(number)
    start = contents.trims.get(uid, (0, frames))[0]
    identity: dict[str, Any] = {
        "key": index.key(number),
        "num_frames": frames,
        "frames": [start, start + frames],
        "groups": [chunks.to_json() for chunks in chunks_of(contents, number)],
    }
    if manifest.copied is None:  # an index of an original may be made again at any time
        names = [name for group in identity["groups"] for name in group["digests"]]
        [digest] = combined_digests(contents, np.array([number]), names).tolist()
        identity |= {"uid": uid, "pages": f"{uid}:{digest:016x}"}
    return identity


def match_identity(identity: Mapping[str, Any], dataset: Dataset, number: int) -> range | str:
    """Return the frames of the identity that the dataset's episode `number` consists of.

    Frame t of the episode is frame `range[t]` of the identity. The range exceeds `[0, num_frames)`
    of the identity where the episode was trimmed then, and is not now. For a mismatch, returns the
    reason instead. Raises `FormatError` for an invalid identity.
    """
    return Identity.parse(identity).match(dataset.contents, number)


def combined_digests(
    contents: Contents, rows: IntArray, names: Sequence[str]
) -> npt.NDArray[np.uint64]:
    """Return one number for the frames of each episode in features, by stored names: uint64 [n].

    Sums of page digests, each times an odd number for its place: arrays of all episodes at once.
    Equal numbers by accident are as unlikely as equal digests of 8 bytes. Raises `KeyError` for a
    feature that is not there.
    """
    index = contents.index
    specs = {contents.stored_name(name): spec for name, spec in contents.features.items()}
    combined = index.num_frames[rows].astype(np.uint64)
    for name in sorted(names):
        spec = specs[name]
        table = index.groups[spec.group]
        counts, first_rows = table.num_chunks[rows], table.first_chunk[rows]
        starts = np.cumsum(counts) - counts
        if np.array_equal(starts, first_rows) and int(counts.sum()) == len(table.file):
            chunks: IntArray | slice = slice(None)  # all, without a copy
            place = np.arange(len(table.file)) - np.repeat(starts, counts)
        else:
            owner, place = ragged_arange(counts)
            chunks = first_rows[owner] + place
        pages = digests_of(contents, spec.group, chunks)
        halves = np.ascontiguousarray(pages).view("<u8")
        digests = halves[:, table.schema.position(spec.name), 0]
        products = digests * (2 * place + 1).astype(np.uint64)
        sums = np.add.reduceat(products, starts)
        sums += table.first_frame[first_rows].astype(np.int64).astype(np.uint64)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:_DIGEST_BYTES], "big") | 1
        combined = (combined ^ combined >> np.uint64(29)) * np.uint64(seed) + sums
    return combined


def are_groups(values: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether JSON values may be the groups of an identity; others are refused later."""
    return isinstance(values, list) and all(
        isinstance(group, dict) and isinstance(group.get("digests"), dict) for group in values
    )


def page_digests(text: str) -> Iterator[str]:
    """Yield the digests in the text of a feature's pages, except those of pages without frames."""
    size = 2 * _DIGEST_BYTES
    for start in range(0, len(text), size):
        if (digest := text[start : start + size]).strip("0"):
            yield digest


def equal_pages(
    contents: Contents, rows: IntArray, name: str, groups: Sequence[Mapping[str, Any]]
) -> npt.NDArray[np.bool_]:
    """Return which episodes `rows` have equal pages of a feature in identities: bool [n].

    `groups` are the JSON values of the feature's group in each identity. True for a feature that is
    not there any more; false where `Identity.match` must decide.
    """
    index, column = contents.index, {contents.stored_name(n): n for n in contents.features}
    if name not in column:
        return np.ones(len(rows), bool)
    spec = contents.features[column[name]]
    table = index.groups[spec.group]
    texts = [str(group["digests"][name]) for group in groups]
    if not texts or not _HEX.fullmatch("".join(texts)):
        return np.zeros(len(rows), bool)
    counts, starts = table.num_chunks[rows], table.first_chunk[rows]
    firsts = table.first_frame[starts].tolist()
    is_equal: npt.NDArray[np.bool_] = (
        np.fromiter(map(len, texts), np.int64) == 2 * _DIGEST_BYTES * counts
    )
    is_equal &= [group.get("first") == n for group, n in zip(groups, firsts, strict=True)]
    places = np.flatnonzero(is_equal)
    if not len(places):
        return is_equal
    owner, place = ragged_arange(counts[places])
    digests = digests_of(contents, spec.group, starts[places][owner] + place)
    pages = digests[:, table.schema.position(spec.name)]
    stored = np.frombuffer(bytes.fromhex("".join(texts[i] for i in places.tolist())), np.uint8)
    has_equal = (pages[:, :_DIGEST_BYTES] == stored.reshape(-1, _DIGEST_BYTES)).all(axis=1)
    ends = np.cumsum(counts[places]) - counts[places]
    is_equal[places] = np.logical_and.reduceat(has_equal, ends)
    return is_equal


@dataclass(frozen=True)
class Identity:
    """A parsed identity: `start` is the first frame in the record files, `groups` the chunks.

    `uid`, and `pages`, the uid and `combined_digests`, are `None` for an original in place.
    """

    key: str
    num_frames: int
    start: int
    groups: tuple[GroupChunks, ...]
    uid: str | None
    pages: str | None

    @classmethod
    def parse(cls, value: object) -> Identity:
        """Check JSON values, which may have other keys beside. Raises `FormatError`."""
        keys, optional = ("key", "num_frames", "frames", "groups"), ("uid", "pages")
        what = "the identity of an episode"
        if isinstance(value, Mapping):
            value = {name: value[name] for name in (*keys, *optional) if name in value}
        fields = JsonObject(value, keys, what, optional)
        num_frames = fields.integer("num_frames", 1, _MAX_FRAMES)
        frames = fields.list("frames", 2, 2)
        if any(type(n) is not int for n in frames) or frames[1] - frames[0] != num_frames:
            raise FormatError(
                f"{what} has bad frames", expected=f"{num_frames} frames", got=str(frames)[:100]
            )
        return cls(
            key=fields.text("key", _KEY),
            num_frames=num_frames,
            start=frames[0],
            groups=tuple(map(GroupChunks.parse, fields.list("groups"))),
            uid=fields.text("uid", _ID) if "uid" in fields.value else None,
            pages=fields.text("pages", _PAGES) if "pages" in fields.value else None,
        )

    @property
    def names(self) -> set[str]:
        """The features from whose frames values were computed."""
        return {name for chunks in self.groups for name in chunks.digests}

    def match(self, contents: Contents, number: int) -> range | str:
        """See `match_identity`."""
        uid, frames = contents.index.uid(number), int(contents.index.num_frames[number])
        present = {
            name: chunks for chunks in chunks_of(contents, number) for name in chunks.digests
        }
        stored = {name: chunks for chunks in self.groups for name in chunks.digests}
        pairs = {n: (present[n], stored[n]) for n in sorted(present.keys() & stored.keys())}
        if self.uid == uid and contents.manifest.copied is None:
            start = contents.trims.get(uid, (0, frames))[0] - self.start
            for name, (chunks, stored_chunks) in pairs.items():
                if not chunks.agrees(name, stored_chunks, start, as_stored=True):
                    return f"feature {name} has changed"
            return range(start, start + frames)
        if not pairs:
            return f"none of its features is left: {', '.join(sorted(stored)) or 'none'}"
        starts = self._starts(pairs, frames)
        if len(starts) == 1:
            return range(starts[0], starts[0] + frames)
        if starts:
            return "trimmed, and equal pages at several places"
        return f"other frames of {', '.join(pairs)}"

    def agrees(self, other: Identity, start: int) -> bool:
        """Return whether no page contradicts that frame 0 is frame `start` of another identity."""
        stored = {name: chunks for chunks in other.groups for name in chunks.digests}
        return all(
            chunks.agrees(name, stored[name], start, as_stored=True)
            for chunks in self.groups
            for name in chunks.digests.keys() & stored.keys()
        )

    def _starts(
        self, pairs: Mapping[str, tuple[GroupChunks, GroupChunks]], frames: int
    ) -> list[int]:
        """Return the frames of the identity with which an episode of `frames` may begin."""
        places = {p for n, (chunks, stored) in pairs.items() for p in chunks.starts_in(n, stored)}
        starts = [
            start
            for start in sorted(places)
            if -frames < start < self.num_frames
            and all(a.agrees(name, b, start, as_stored=False) for name, (a, b) in pairs.items())
        ]
        return [0] if 0 in starts and frames == self.num_frames else starts


@dataclass(frozen=True, eq=False)
class GroupChunks:
    """The chunks of an episode in one group: `edges` are their first frames, then the end.

    `digests` are the first 8 bytes of the features' page digests, as integers: uint64 [chunks] by
    name. The first and last chunk of a trimmed episode have hidden frames.
    """

    edges: npt.NDArray[np.int64]  # [chunks + 1]
    digests: Mapping[str, npt.NDArray[np.uint64]]

    def to_json(self) -> dict[str, Any]:
        """JSON values: the first frame, numbers of chunks by length, digests in hexadecimal."""
        lengths = [[size, len([*run])] for size, run in groupby(np.diff(self.edges).tolist())]
        digests = {name: column.tobytes().hex() for name, column in self.digests.items()}
        return {"first": int(self.edges[0]), "chunks": lengths, "digests": digests}

    @classmethod
    def parse(cls, value: object) -> GroupChunks:
        """Inverse of `to_json`. Raises `FormatError`."""
        what = "a group of an identity"
        fields = JsonObject(value, ("first", "chunks", "digests"), what)
        lengths = fields.list("chunks", 1)
        digests = fields.value["digests"]
        if not isinstance(digests, dict) or not all(
            isinstance(text, str) and _HEX.fullmatch(text) for text in digests.values()
        ):
            raise FormatError(f"{what} has bad digests", expected="hexadecimal digits by feature")
        columns = {n: np.frombuffer(bytes.fromhex(text), np.uint64) for n, text in digests.items()}
        counts = {len(column) for column in columns.values()}
        is_right = all(
            isinstance(run, list) and [type(n) for n in run] == [int, int] and min(run) >= 1
            for run in lengths
        )
        is_right = is_right and sum(size * count for size, count in lengths) <= _MAX_FRAMES
        if not is_right or counts - {sum(count for _, count in lengths)}:
            raise FormatError(f"{what} has bad chunks", got=str(lengths)[:100])
        first = fields.integer("first", -_MAX_FRAMES, 0)
        sizes = np.repeat(*np.array(lengths, np.int64).T)
        return cls(first + np.append(0, np.cumsum(sizes)), columns)

    def starts_in(self, name: str, stored: GroupChunks) -> Iterator[int]:
        """Yield the places in `stored` at which a chunk of a feature is the same."""
        column, stored_column = self.digests[name], stored.digests[name]
        order = np.argsort(stored_column, kind="stable")
        for number in np.flatnonzero((column != 0) & np.isin(column, stored_column))[:_TRIED]:
            low = np.searchsorted(stored_column, column[number], "left", order)
            high = np.searchsorted(stored_column, column[number], "right", order)
            for place in order[low:high].tolist():
                yield int(stored.edges[place] - self.edges[number])

    def agrees(self, name: str, stored: GroupChunks, start: int, *, as_stored: bool) -> bool:
        """Return whether no chunk contradicts that frame 0 is frame `start` of `stored`.

        Where both have frames, they must have equal chunks; unless `as_stored`, the first and last
        chunk may have been cut to the remaining frames when they were copied.
        """
        first, end = self.edges[:-1] + start, self.edges[1:] + start
        place = np.searchsorted(stored.edges[:-2], first)
        is_same_chunk = (stored.edges[place] == first) & (stored.edges[place + 1] == end)
        has_equal_page = self.digests[name] == stored.digests[name][place]
        overlaps = np.searchsorted(stored.edges[:-1], end) - np.searchsorted(
            stored.edges[1:], first, "right"
        )
        is_cut = np.zeros(len(first), bool)
        if not as_stored:
            is_cut[[0, -1]] = ~is_same_chunk[[0, -1]] & (overlaps[[0, -1]] == 1)
        return bool((np.where(is_same_chunk, has_equal_page, is_cut) | (overlaps <= 0)).all())


_TRIED = 64  # chunks of a feature whose places are tried: each is a candidate for all features


def digests_of(contents: Contents, group: int, rows: IntArray | slice) -> npt.NDArray[np.uint8]:
    """Return the digests of chunks' pages: uint8 [rows, features, 16]; of references, of their
    content.
    """
    table = contents.index.groups[group]
    if table.external[rows].any():
        numbers = np.arange(len(table.file))[rows] if isinstance(rows, slice) else rows
        return contents.chunks.external.content_digests(table, numbers)
    return table.page_digest[rows]


def chunks_of(contents: Contents, number: int) -> Iterator[GroupChunks]:
    """Yield the chunks of an episode in each group with selected features, by stored names."""
    index = contents.index
    for group in sorted({spec.group for spec in contents.features.values()}):
        table = index.groups[group]
        part = table.rows_of(number)
        rows = np.arange(part.start, part.stop)
        digests = digests_of(contents, group, rows)
        short = np.ascontiguousarray(digests[:, :, :_DIGEST_BYTES]).view(np.uint64)[:, :, 0]
        first = int(table.first_frame[part.start])
        edges = first + np.append(0, np.cumsum(table.num_frames[part], dtype=np.int64))
        names = [name for name in table.schema if name in contents.features]
        columns = {n: short[:, table.schema.position(n)].copy() for n in names}
        yield GroupChunks(edges, {contents.stored_name(n): c for n, c in columns.items()})
