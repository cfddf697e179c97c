"""Bytes of a page, shared out over episodes, pictures, curves and captions."""

from __future__ import annotations

from dataclasses import dataclass

MIN_EPISODE_BYTES = 1500  # of pictures, curves and captions; fewer would show nothing

_PIXEL_BYTES = 0.15  # of a small picture as WebP and base64
_TILES = (  # number of tiles, and pixels of each
    (2, 24 * 18), (3, 32 * 24), (4, 40 * 30), (4, 48 * 36), (5, 56 * 42), (6, 64 * 48),
    (8, 80 * 60), (10, 96 * 72), (12, 112 * 84), (16, 128 * 96), (20, 160 * 120),
    (24, 192 * 144), (32, 224 * 168), (40, 256 * 192), (48, 320 * 240), (64, 320 * 240),
    (64, 480 * 360),
)  # fmt: skip
_CHANNEL_BYTES, _CURVE_BYTES = 26, 110  # of the JSON around the points
_MIN_POINTS, _MAX_POINTS = 12, 2000


@dataclass(frozen=True)
class Share:
    """Bytes of one episode in the page.

    `picture` is of each feature with pictures, at most `tiles` of `pixels` each; `points` of each
    curve; `text` of each feature with captions. 0 leaves the kind out.
    """

    picture: int
    tiles: int
    pixels: int
    points: int
    text: int

    def omissions(self, *, pictures: bool, curves: bool) -> list[str]:
        """Notes on kinds that the source has, and the page has no room for."""
        notes = ["all pictures"] if pictures and not self.picture else []
        return notes + (["all curves"] if curves and not self.points else [])


def share_of(room: int, *, pictures: int, curves: int, channels: int, texts: int) -> Share:
    """Share out the bytes of an episode over numbers of features, and of channels of curves."""
    text = min(6000, room // 6 // texts) if texts else 0
    room -= text * texts
    part = (0.4 if pictures else 0.95) if channels else 0.0
    free = int(room * part) - _CURVE_BYTES * curves - _CHANNEL_BYTES * channels
    points = min(_MAX_POINTS, int(free * 0.75) // max(channels, 1))
    if points > 256:  # of 16 bits
        points = max(256, points // 2)
    if points < _MIN_POINTS:
        points = 0
    else:
        room -= _CURVE_BYTES * curves + channels * (_CHANNEL_BYTES + points * 4 // 3)
    picture = room // pictures if pictures else 0
    fitting = [tile for tile in _TILES if tile[0] * tile[1] * _PIXEL_BYTES <= picture]
    tiles, pixels = fitting[-1] if fitting else (0, 0)
    return Share(picture if fitting else 0, tiles, pixels, points, text)
