"""Bytes of a page, shared out over episodes, pictures, curves and captions."""

from __future__ import annotations

from dataclasses import dataclass

MIN_EPISODE_BYTES = 2500  # of pictures, curves and captions; fewer would show nothing

_TILES = (  # number of tiles, and pixels of each
    (2, 24 * 18), (3, 32 * 24), (4, 40 * 30), (4, 48 * 36), (5, 56 * 42), (6, 64 * 48),
    (8, 80 * 60), (10, 96 * 72), (12, 112 * 84), (16, 128 * 96), (20, 160 * 120),
    (24, 192 * 144), (32, 224 * 168), (40, 256 * 192), (48, 320 * 240), (64, 320 * 240),
    (64, 480 * 360),
)  # fmt: skip
_CHANNEL_BYTES, _CURVE_BYTES = 26, 110  # of the JSON around the points
_MIN_POINTS, _FEW_POINTS, _MAX_POINTS = 12, 32, 2000

MAX_SHORT_POINTS = 256
"""Most points of a curve with 8 bits each; others have 16."""


@dataclass(frozen=True)
class Share:
    """Bytes of one episode in the page.

    `pictures` are for all features together, at most `tiles` of `pixels` each; `points` of each
    curve; `text` of each feature with captions. 0 leaves the kind out.
    """

    pictures: int
    tiles: int
    pixels: int
    points: int
    text: int

    def omissions(self, *, pictures: bool, curves: bool) -> list[str]:
        """Notes on kinds that the source has, and the page has no room for."""
        notes = ["all pictures"] if pictures and not self.pictures else []
        return notes + (["all curves"] if curves and not self.points else [])


@dataclass(frozen=True)
class Contents:
    """A source's numbers of features by the way a page shows them, and its curves' channels.

    `max_frames` is the length of its longest episode, `pixel_bytes` the measured size of a pixel in
    small pictures, summed over features.
    """

    pictures: int
    curves: int
    channels: int
    texts: int
    max_frames: int
    pixel_bytes: float


def share_of(room: int, contents: Contents, *, picture_room: int | None = None) -> Share:
    """Share out an episode's bytes in the page, and `picture_room` if pictures have their own."""
    curves, channels, texts = contents.curves, contents.channels, contents.texts
    pictures = contents.pictures if picture_room is None else 0
    text = min(6000, room // 6 // texts) if texts else 0
    room -= text * texts
    fixed = _CURVE_BYTES * curves + _CHANNEL_BYTES * channels
    part = max(0.4 * room, min(0.6 * room, fixed + _FEW_POINTS * channels * 4 / 3))
    free = int(part if pictures else 0.95 * room) - fixed
    points = int(free * 0.75) // max(channels, 1)
    if points > MAX_SHORT_POINTS:
        points = max(MAX_SHORT_POINTS, points // 2)
    points = min(points, _MAX_POINTS, max(_MIN_POINTS, contents.max_frames))
    if points < _MIN_POINTS or not channels:
        points = 0
    else:
        size = points if points <= MAX_SHORT_POINTS else 2 * points
        room -= fixed + channels * size * 4 // 3
    if picture_room is not None:
        room, pictures = picture_room, contents.pictures
    fitting = [tile for tile in _TILES if tile[0] * tile[1] * contents.pixel_bytes <= room]
    tiles, pixels = fitting[-1] if fitting and pictures else (0, 0)
    return Share(room if tiles else 0, tiles, pixels, points, text)
