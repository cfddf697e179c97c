"""The index of any writers' record files, against brute force: whoever wrote them, in any order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import IndexFile, Manifest
from seqrecord.format.rows import GAP_ROW, chunk_row
from seqrecord.reading.index_building import build_index
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage
from seqrecord.writing.commits import Base, Version, appended, rebuilt

SCHEMA = Schema([FeatureSpec("x", np.dtype("u1"), (4,)), FeatureSpec("y", np.dtype("u1"), (None,))])
CHUNK = 2  # frames
NOWHERE = LocalStorage("/nowhere")


@dataclass(frozen=True)
class Piece:
    """Chunks [start, stop) of an episode in one file; `ends` tells its number of frames."""

    part: EpisodePart
    start: int
    stop: int
    ends: bool


def num_chunks(part: EpisodePart) -> int:
    return -(-(part.num_frames or 0) // CHUNK)


def footer(file_id: str, pieces: Iterable[Piece]) -> Footer:
    rows, gaps, parts = list[Any](), list[Any](), list[EpisodePart]()
    offset = 64
    for number, piece in enumerate(pieces):
        part = piece.part
        parts.append(part if piece.ends else replace(part, num_frames=None))
        for chunk in range(piece.start, piece.stop):
            row = np.zeros(1, chunk_row(2, 1))
            frames = min(CHUNK, (part.num_frames or 0) - chunk * CHUNK)
            row["episode"], row["num_frames"], row["first_frame"] = number, frames, chunk * CHUNK
            row["offset"] = offset
            row["pages"]["length"] = [4 * frames, 0]
            row["pages"]["crc32c"] = [random.Random(f"{part.uid} {chunk}").getrandbits(32), 0]
            gaps.append((len(rows), 1, 0))
            rows.append(row)
            offset += 64
    return Footer(SCHEMA, file_id, tuple(parts), np.concatenate(rows), np.array(gaps, GAP_ROW))


class World:
    """A storage on which writers begin, end, are interrupted, append and resume, as integers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.footers: dict[str, Footer] = {}
        self.manifest: Manifest | None = None
        self.index: Index | None = None

    def hex(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def write(self, ordinal: int, keys: Iterable[str]) -> dict[str, Footer]:
        """A writer's record files; of the last episode pieces may be lost."""
        writer, pieces = self.hex(), list[Piece]()
        for key in keys:
            frames = self.rng.randint(1, 9)
            part = EpisodePart(key, writer + self.hex(), ordinal, CHUNK, frames, f'{{"{key}":1}}')
            cuts = {0, num_chunks(part), self.rng.randint(0, num_chunks(part))}
            bounds = sorted(cuts)
            pieces += [Piece(part, a, b, b == num_chunks(part)) for a, b in pairwise(bounds)]
            ordinal += 1
        files: list[list[Piece]] = [[]]
        for piece in pieces:
            if files[-1] and (piece.part.uid in {p.part.uid for p in files[-1]}):
                files.append([])
            files[-1].append(piece)
        if self.rng.random() < 0.5:
            files.pop()  # killed: the last file was never finished
        return self.named(writer, files)

    def copies(self) -> dict[str, Footer]:
        """What a resume copies of an episode: its last chunks, perhaps cut in another way."""
        writer, files = self.hex(), list[list[Piece]]()
        ended = [p for f in self.footers.values() for p in f.episodes if p.num_frames]
        for part in self.rng.sample(ended, min(2, len(ended))):
            start = self.rng.randint(0, num_chunks(part) - 1)
            cut = self.rng.randint(start, num_chunks(part))
            for a, b in ((start, cut), (cut, num_chunks(part))):
                if a < b:
                    files.append([Piece(part, a, b, b == num_chunks(part))])
        return self.named(writer, files)

    def named(self, writer: str, files: Iterable[list[Piece]]) -> dict[str, Footer]:
        made = {}
        for pieces in files:
            if pieces:
                file_id = writer + self.hex()
                path = f"records/{pieces[0].part.ordinal:05d}-{file_id}.seqrec"
                made[path] = footer(file_id, pieces)
        return made

    def commit(self, version: Version) -> None:
        table = IndexFile("index/x.arrow", 1, "0" * 8)
        self.index = version.index
        self.manifest = Manifest(
            SCHEMA,
            version.record_files,
            dict.fromkeys(("episodes", "chunks", "gaps"), table),
            len(version.index.num_frames),
            int(version.index.num_frames.sum()),
            version.index.fingerprint(),
            "test",
            version.next_ordinal,
            version.left_out,
        )
        assert Manifest.parse(self.manifest.encode()) == self.manifest

    def rebuild(self, footers: Mapping[str, Footer]) -> Version:
        items = list(footers.items())
        self.rng.shuffle(items)
        sizes = dict.fromkeys(footers, 1 << 20)
        return rebuilt(NOWHERE, Base(self.manifest, None, ()), dict(items), sizes)


def said(index: Index) -> list[tuple[str, int, tuple[int, ...], int]]:
    """Of each episode: key, frames, checksums of its chunks, gap rows."""
    found = []
    for number, key in enumerate(index.keys.to_pylist()):
        first, count = int(index.first_chunk[number]), int(index.num_chunks[number])
        chunks = index.gaps["chunk"]
        gaps = int(np.count_nonzero((chunks >= first) & (chunks < first + count)))
        sums = tuple(index.page_crc32c[first : first + count, 0].tolist())
        found.append((key, int(index.num_frames[number]), sums, gaps))
    return found


def brute_force(world: World, footers: Mapping[str, Footer]) -> list[tuple[str, int]]:
    """(key, frames) of the episodes in order, from sets of chunks."""
    held: dict[tuple[bool, str], set[int]] = defaultdict(set)
    parts: dict[str, EpisodePart] = {}
    files = {file.path for file in world.manifest.record_files} if world.manifest else set()
    left_out = world.manifest.left_out if world.manifest else ()
    for path, item in footers.items():
        for number, part in enumerate(item.episodes):
            if part.num_frames is not None:
                parts[part.uid] = part
            for row in item.chunks[item.chunks["episode"] == number]:
                held[False, part.uid].add(int(row["first_frame"]))
                if path in files:
                    held[True, part.uid].add(int(row["first_frame"]))
    winners: dict[str, tuple[bool, str]] = {}
    for uid, part in parts.items():
        if len(held[False, uid]) == num_chunks(part):
            old = uid not in left_out and len(held[True, uid]) == num_chunks(part)
            rank = (not old, uid)
            winners[part.key] = min(rank, winners.get(part.key, rank))
    chosen = sorted((parts[uid] for _, uid in winners.values()), key=lambda p: (p.ordinal, p.uid))
    return [(part.key, part.num_frames or 0) for part in chosen]


def check(world: World) -> None:
    """The manifest's record files alone, in any order, make the dataset again."""
    assert world.manifest is not None
    assert world.index is not None
    listed = {file.path: world.footers[file.path] for file in world.manifest.record_files}
    again = world.rebuild(listed)
    assert again.index.fingerprint() == world.index.fingerprint()
    assert said(again.index) == said(world.index)
    assert again.next_ordinal == world.manifest.next_ordinal
    assert set(again.left_out) <= set(world.manifest.left_out)
    assert {f.path for f in again.record_files} == set(listed)


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_writers(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    for _ in range(8):
        ordinal = world.manifest.next_ordinal if world.manifest else 0
        committed = set(world.index.positions) if world.index else set()
        # Writers that begin together, with some keys in common; the first of them commits.
        writers = []
        for _ in range(rng.randint(1, 3)):
            keys = [key for key in "abcdefghijklmnopqrstuvwxyz" if key not in committed]
            writers.append(world.write(ordinal, rng.sample(keys, min(len(keys), 3))))
        world.footers |= {path: made for new in writers for path, made in new.items()}
        if rng.random() < 0.5:
            world.footers |= world.copies()
        if world.manifest is None or rng.random() < 0.4:  # a resume recovers what all have left
            expected = brute_force(world, world.footers)
            if not expected:
                with pytest.raises(FormatError, match="no complete episode"):
                    world.rebuild(world.footers)
                continue
            version = world.rebuild(world.footers)
            assert [(key, frames) for key, frames, *_ in said(version.index)] == expected
            assert {f.path for f in version.record_files} >= {
                f.path for f in (world.manifest.record_files if world.manifest else ())
            }
        else:
            assert world.index is not None
            old = said(world.index)
            sizes = dict.fromkeys(writers[0], 1 << 20)
            version = appended(world.manifest, world.index, writers[0], sizes)
            assert said(version.index)[: len(old)] == old
            listed = {f.path for f in world.manifest.record_files} | set(writers[0])
            same = world.rebuild({path: world.footers[path] for path in listed})
            assert version.index.fingerprint() == same.index.fingerprint()
            assert version.next_ordinal == same.next_ordinal
            assert {f.path for f in version.record_files} == {f.path for f in same.record_files}
        assert committed <= set(version.index.positions)
        world.commit(version)
        check(world)


def test_an_append_is_byte_for_byte_what_reindex_makes() -> None:
    world = World(1)
    world.footers = world.write(0, "abc")
    world.commit(world.rebuild(world.footers))
    assert world.manifest is not None
    assert world.index is not None
    new = world.write(world.manifest.next_ordinal, "defg")
    more = appended(world.manifest, world.index, new, dict.fromkeys(new, 1 << 20))
    again = world.rebuild(world.footers | new)
    assert more.record_files == again.record_files
    for name, table in more.index.encode().items():
        assert bytes(table) == bytes(again.index.encode()[name])


def test_an_index_is_extended_by_nothing_of_a_file_without_a_whole_episode() -> None:
    world = World(2)
    world.footers = world.write(0, "abc")
    world.commit(world.rebuild(world.footers))
    assert world.manifest is not None
    assert world.index is not None
    part = EpisodePart("d", "1" * 32, 9, CHUNK, 5, "{}")
    cut = {"records/00009-x.seqrec": footer("2" * 32, [Piece(part, 0, 1, False)])}
    version = appended(world.manifest, world.index, cut, dict.fromkeys(cut, 9))
    assert version.record_files == world.manifest.record_files
    assert version.index.fingerprint() == world.manifest.fingerprint


def test_copies_that_differ_are_refused() -> None:
    part = EpisodePart("a", "1" * 32, 0, CHUNK, 5, "{}")
    whole = footer("2" * 32, [Piece(part, 0, 3, True)])
    copy = footer("3" * 32, [Piece(part, 1, 3, True)])
    assert build_index({"a": whole, "b": copy}).files == ("a",)
    copy.chunks["pages"]["crc32c"][0, 0] += 1
    with pytest.raises(FormatError, match="contradict"):
        build_index({"a": whole, "b": copy})
    with pytest.raises(FormatError, match="one id"):
        build_index({"a": whole, "b": whole})
