"""Keys: one integer for each frame of an episode, or of a run. Pure integers.

An episode is given by its row of the index, a run by its number in a plan; both are owners here::

    bit       63    62 ...... 32     31 ...... 0
               0    owner            frame

No owner has frame 2^32 - 1. So there is a key between the frames of one owner and those of the
next: it stands for what lies behind the one's last frame, and before the other's first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_FRAMES", "MAX_OWNERS", "frame_keys", "sought_keys", "split_keys"]

_IntArray = npt.NDArray[np.int64]

_FRAME_BITS = 32
_FRAME = (1 << _FRAME_BITS) - 1
MAX_FRAMES = _FRAME  # of an owner: numbered from 0 on, they leave out the last number
MAX_OWNERS = 1 << 63 - _FRAME_BITS  # so that no key is negative


def frame_keys(owner: _IntArray, frame: _IntArray) -> _IntArray:
    """A number for each frame of each owner, which ascends with both.

    Owners are in `[0, MAX_OWNERS)`, frames in `[0, MAX_FRAMES]`: the last one is past the end. Keys
    of frames in a row follow each other; those of two owners never do.
    """
    return (owner << _FRAME_BITS) + frame


def sought_keys(owner: _IntArray, frame: _IntArray) -> _IntArray:
    """As `frame_keys`, of frames that may lie anywhere: to search among keys of frames.

    The key of a frame outside `[0, MAX_FRAMES)` lies before, or behind, all of its owner's frames,
    and between these and other owners'.
    """
    return frame_keys(owner, np.minimum(np.maximum(frame, -1), MAX_FRAMES))


def split_keys(keys: _IntArray) -> tuple[_IntArray, _IntArray]:
    """Inverse of `frame_keys`: owners and frames."""
    return keys >> _FRAME_BITS, keys & _FRAME
