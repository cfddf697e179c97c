"""Pair rows whose times jitter with the frames of their episode.

Recorders store the time at which a row was taken, and frames at the frame rate: their times differ
by a few milliseconds, although row i is taken with frame i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from seqrecord.formats.sources.lerobot.layout import LeRobotEpisode
from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.streams import TOLERANCE
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.store.tables.grids import nearest_frames
from seqrecord.store.text import counted

FloatArray = npt.NDArray[np.float64]

# Less than half a step, so that a frame of another row is never nearer. Shifts and drifts are
# refused: tests/formats/test_lerobot.py::test_other_times_than_jitter_are_refused.
_MOST_SPREAD = 0.25  # steps between the largest and the smallest difference
_MOST_MEDIAN = 1e-3  # seconds


def have_frames(times: FloatArray, frames: FloatArray, tolerance: float) -> bool:
    """Return whether a frame is within `tolerance` seconds of each row's time.

    Args:
        times: seconds of rows: float64 [rows].
        frames: ascending seconds of frames: float64 [frames], at least one.
        tolerance: seconds.
    """
    distances = np.abs(frames[nearest_frames(times, frames)] - times)
    return bool(distances.max(initial=0) < tolerance)


def pair_in_order(
    times: FloatArray, frames: FloatArray, begin: float, step: float
) -> tuple[FloatArray, float] | None:
    """Return the times of the frames that belong to rows one to one, and the largest difference.

    The first row belongs to the episode's first frame, and each further one to the next frame.
    Jitter scatters the differences of their times by less than a quarter step around zero; a frame
    that is missing, a shift, a drift or another frame rate does not. Then there is no result.

    Args:
        times: ascending seconds of rows by the file's clock: float64 [rows].
        frames: ascending seconds of the file's frames: float64 [frames].
        begin: seconds of the episode's first frame.
        step: seconds between frames.
    """
    count = len(times)
    first_frame = int(np.searchsorted(frames, begin - _MOST_SPREAD * step))
    episode_frames = frames[first_frame : first_frame + count]
    if (
        not count
        or len(episode_frames) < count
        or abs(episode_frames[0] - begin) > _MOST_SPREAD * step
    ):
        return None
    differences = times - episode_frames
    if (
        not np.ptp(differences) < _MOST_SPREAD * step
        or not abs(np.median(differences)) < _MOST_MEDIAN
    ):
        return None
    return episode_frames, float(np.abs(differences).max())


def jitter_note(place: str, largest: float) -> str:
    """Return a note on rows that jitter; `largest` is in seconds."""
    tolerance = (math.floor(largest * 1e4 + 0.5) + 1) / 1e4
    return (
        f"times of rows jitter in {place}, by up to {1e3 * largest:.1f} ms; each row has the frame "
        f"of its number; lerobot-train needs --tolerance_s={tolerance:.4g}"
    )


class Jitter:
    """The largest difference between the times of rows that jitter and those of their frames.

    Args:
        fps: frames per second.
        times_of: returns the seconds of an episode's rows: float64 [T].
        tolerance: of the user, in seconds; then rows are not paired in order.
    """

    def __init__(
        self,
        fps: float,
        times_of: Callable[[LeRobotEpisode], FloatArray],
        tolerance: float | None,
    ) -> None:
        self._step, self._times_of, self._tolerance = 1 / fps, times_of, tolerance
        self._episodes: set[str] = set()
        self._largest = 0.0

    def add(self, name: str, file: VideoFile, episodes: Iterable[LeRobotEpisode]) -> None:
        """Take the episodes whose frames of the feature `name` are in a file."""
        if self._tolerance is not None:
            return
        ticks = sorted([entry.timestamp for entry in file.entries() if not entry.is_discard])
        frames = np.array(ticks or file.ticks()) * file.tick
        for episode in episodes:
            with skipping_unreadable():  # raised by reading
                self._take(episode, episode.videos[name].begin, frames)

    def _take(self, episode: LeRobotEpisode, begin: float, frames: FloatArray) -> None:
        times = self._times_of(episode) + begin
        if not len(frames) or have_frames(times, frames, TOLERANCE):
            return
        if (pair := pair_in_order(times, frames, begin, self._step)) is not None:
            self._episodes.add(episode.key)
            self._largest = max(self._largest, pair[1])

    def lines(self) -> list[str]:
        """Return a note if there is jitter."""
        place = counted(len(self._episodes), "episode")
        return [jitter_note(place, self._largest)] if self._episodes else []
