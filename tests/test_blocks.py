"""Blocks: all bytes, each once, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from seqrecord.checksum import crc32c
from seqrecord.reading.blocks import Stretch, read_blocks
from seqrecord.storage import LocalStorage, StorageWrapper
from seqrecord.storage.ranges import ByteRange

MIB = 1 << 20


class Noting(StorageWrapper):
    """Notes what is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalStorage(path))
        self.read: list[ByteRange] = []

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self.read += ranges
        super().read_ranges(path, ranges, buffers)


@pytest.mark.parametrize("sizes", [[0], [1], [9 * MIB], [3 * MIB, 0, 5 * MIB + 7, 40 * MIB]])
def test_all_bytes_are_read_once(tmp_path: Path, sizes: list[int]) -> None:
    data = np.random.default_rng(0).integers(0, 256, 100 + sum(sizes), np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    storage = Noting(tmp_path)
    targets = [np.zeros(size, np.uint8) for size in sizes]
    stretch = Stretch(100, [target.data for target in targets])
    (checksum,) = read_blocks(storage, "file", [stretch])
    assert np.concatenate(targets).tobytes() == data[100:].tobytes()
    assert checksum == crc32c(data[100:].tobytes())
    assert all(item.length for item in storage.read)
    ends = [item.stop for item in storage.read]
    assert [item.start for item in storage.read] == [100, *ends[:-1]][: len(ends)]
    assert max((item.length for item in storage.read), default=0) <= 2 * MIB


def test_stretches_are_read_together_and_summed_alone(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 14 * MIB, np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    storage = Noting(tmp_path)
    bounds = [(7, 7), (64, 5 * MIB + 1), (5 * MIB + 1, 5 * MIB + 64), (6 * MIB, 14 * MIB)]
    targets = [[np.zeros(n, np.uint8) for n in (b - a - 3, 3)] for a, b in bounds if b - a > 3]
    targets.insert(0, [])
    stretches = [
        Stretch(a, [target.data for target in some])
        for (a, _), some in zip(bounds, targets, strict=True)
    ]
    sums = read_blocks(storage, "file", stretches)
    for (a, b), some, checksum in zip(bounds, targets, sums, strict=True):
        expected = data[a:b].tobytes()
        assert b"".join(target.tobytes() for target in some) == expected
        assert checksum == crc32c(expected)
    assert sum(item.length for item in storage.read) == sum(b - a for a, b in bounds)
