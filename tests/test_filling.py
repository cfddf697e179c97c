"""Batches are gathered from the arena, in one task or in many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from seqrecord.arena import Arena
from seqrecord.engine import filling
from seqrecord.engine.filling import Gathering, batch_pools
from seqrecord.frames import ArraySpec

SPECS = {
    "image": ArraySpec(np.dtype("u1"), (3, 5)),
    "step": ArraySpec(np.dtype("<i8"), ()),
    "note": ArraySpec(np.dtype("u1"), (None,), 3),
    "empty": ArraySpec(np.dtype("<f4"), (0, 2)),
}


def filled_arena(num_rows: int) -> Arena:
    arena = Arena(SPECS, num_rows)
    for row in range(num_rows):
        arena["image"][row] = row
        arena["step"][row] = 1000 + row
        arena["note"].make(row, [(1 + row % 3,)])[0][:] = row
    return arena


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("copy_bytes", [1, 40, 1 << 20])
def test_a_batch_in_parts(monkeypatch: pytest.MonkeyPatch, copy_bytes: int, threads: int) -> None:
    monkeypatch.setattr(filling, "_COPY_BYTES", copy_bytes)
    arena = filled_arena(9)
    pools = batch_pools(SPECS, 5, 2, keep=1)
    assert set(pools) == set(SPECS)
    rows = np.array([[0, 1], [8, 0], [4, 4], [3, 2]])
    with ThreadPoolExecutor(2) as executor:
        batch = Gathering(4, arena, pools)  # fewer clips than the buffers hold
        for part in (slice(0, 1), slice(1, 4)):
            assert not batch.is_full
            batch.gather(np.arange(4)[part], np.arange(10, 14)[part], rows[part], executor, threads)
    assert batch.is_full
    done = batch.finish()
    assert len(done) == 4
    assert list(done.features) == list(SPECS)
    image, step = done.features["image"], done.features["step"]
    assert not isinstance(image, list)
    assert not isinstance(step, list)
    assert image.shape == (4, 2, 3, 5)
    assert (image == image[:, :, :1, :1]).all()
    assert image[:, :, 0, 0].tolist() == rows.tolist()
    assert step.tolist() == (1000 + rows).tolist()
    assert [[frame.tolist() for frame in clip] for clip in done.features["note"]] == [
        [[row] * (1 + row % 3) for row in clip] for clip in rows.tolist()
    ]
    assert done.episode.tolist() == [0, 1, 2, 3]
    assert done.start.tolist() == [10, 11, 12, 13]
