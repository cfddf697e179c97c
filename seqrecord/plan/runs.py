"""The order of an epoch: long pieces cut into runs, and the runs permuted."""

from __future__ import annotations

import numpy as np

from seqrecord.order import IntArray, hash64, key_of, permutation
from seqrecord.plan.blocks import Pieces, cut_pieces, order_runs

__all__ = ["shuffle_runs"]


def shuffle_runs(
    pieces: Pieces, run_frames: int | None, grid: IntArray, key: int, *, num_lanes: int = 0
) -> Pieces:
    """The same clips in runs of about `run_frames` frames, in an order drawn from `key`.

    Runs are cut where the frame's number is a multiple of `grid`, int64[pieces], at places that
    `key` moves by up to a quarter of a run; those no longer than `run_frames` stay whole. The
    order begins in the middle of a run, so that whatever is cut from it later at fixed places is
    cut elsewhere for another key; with `run_frames=None` that run is the only one cut. None is cut
    there where `num_lanes` equal lanes cut none either.
    """
    total = pieces.num_clips
    if not total:
        return pieces
    length = total
    if run_frames is not None:
        length = min(total, max(1, run_frames // pieces.stride))
    steps = np.arange(-(-total // length))
    drawn = hash64(key_of(key, 0), np.append(steps, -1))
    moved = (drawn[:-1] % np.uint64(length // 2 + 1)).astype(np.int64) - length // 4
    moved[0] = 0
    places = (int(drawn[-1] % np.uint64(total)) + steps * length + moved) % total

    piece = np.searchsorted(pieces.first_clip, places, side="right") - 1
    run_clips = np.zeros(int(pieces.run[-1]) + 1, np.int64)
    np.add.at(run_clips, pieces.run, pieces.count)
    wanted = run_clips[pieces.run[piece]] > length
    even = num_lanes == 1 or (
        num_lanes > 1 and len(np.unique(run_clips)) == 1 and len(run_clips) % num_lanes == 0
    )
    wanted[0] = not even
    cuts = pieces.snap(places[wanted], grid)
    runs = cut_pieces(pieces, np.unique(cuts))

    rank = np.empty(int(runs.run[-1]) + 1, np.int64)
    rank[permutation(key_of(key, 1), len(rank))] = np.arange(len(rank))
    if not even:
        rank[runs.run[np.searchsorted(runs.first_clip, cuts[0])]] = -1
    return order_runs(runs, rank)
