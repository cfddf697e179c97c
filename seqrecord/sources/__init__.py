"""Where episodes come from: original data sets behind one protocol."""

from __future__ import annotations

import os
from collections.abc import Sequence

from seqrecord.errors import SourceError
from seqrecord.sources.base import EpisodeInfo, Source
from seqrecord.sources.folders import Folders
from seqrecord.sources.tartanair import CAMERAS, TartanAir

__all__ = [
    "CAMERAS",
    "EpisodeInfo",
    "Folders",
    "Source",
    "TartanAir",
    "open_source",
]


def open_source(
    path: str | os.PathLike[str],
    *,
    features: Sequence[str] | None = None,
    keep_encoded: bool = False,
    cameras: Sequence[str] | None = None,
    difficulty: str | None = None,
) -> Source:
    """The source that fits what lies at `path`: `TartanAir` where it is one, else `Folders`.

    `cameras` and `difficulty` are TartanAir's. Raises `SourceError`, which says what was looked
    for, if `path` is no such tree.
    """
    tartanair = TartanAir(
        path,
        features=features,
        cameras=CAMERAS if cameras is None else cameras,
        difficulty=difficulty,
        keep_encoded=keep_encoded,
    )
    if tartanair.exists():
        return tartanair
    folders = Folders(path, features=features, keep_encoded=keep_encoded)
    if not folders.exists():
        raise SourceError(
            "nothing here that can be packed",
            file=os.fspath(path),
            expected="TartanAir (ENV/Easy/P000/image_left/000000_left.png, or "
            "ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png), or any "
            "EPISODE/FEATURE/000000.png (or jpg, npy), or EPISODE/FEATURE.npy",
        )
    if cameras is not None or difficulty is not None:
        raise SourceError(
            "cameras and difficulty can be chosen for TartanAir only",
            file=os.fspath(path),
            got="a tree of episode folders",
        )
    return folders
