"""Find fragments that an MP4 file has lost: from their numbers and times, and from its own list.

A writer counts its fragments, and each begins when the one before ends. A pause alone, or numbers
that skip because another track was left out, is no loss: both together are. Format: ISO/IEC
14496-12, 8.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from seqrecord.formats.sources.video.file_bytes import FileBytes

_HEAD = 16  # of the table of a track
# Numbers or times that skip alone are no loss, both are: tests/formats/test_cut_videos.py has
# test_skipped_numbers_or_a_pause_alone_are_no_lost_fragments.
_MOST_PAUSE = 0.01  # of a fragment; rounding of times is no loss


class _Fragment(NamedTuple):
    at: int
    number: int | None
    begin: int | None  # of the selected track, in its ticks
    ticks: int


class FragmentOrder:
    """Places, numbers and times of a file's fragments, in its order."""

    def __init__(self, data: FileBytes) -> None:
        self._data = data
        self._fragments: list[_Fragment] = []
        self.listed: set[int] = set()
        """Offsets of fragments, from the file's own list."""

    def begin(self, at: int) -> None:
        """Take the offset of the next fragment."""
        self._fragments.append(_Fragment(at, None, None, 0))

    def number(self, number: int) -> None:
        """Take the current fragment's number."""
        self._fragments[-1] = self._fragments[-1]._replace(number=number)

    def time(self, begin: int, ticks: int) -> None:
        """Take the selected track's first time in the current fragment, and its duration."""
        self._fragments[-1] = self._fragments[-1]._replace(begin=begin, ticks=ticks)

    def check(self) -> None:
        """Raise `SourceError` if a fragment is lost."""
        self._check_list()
        self._check_numbers()

    def _check_list(self) -> None:
        """A list of which no entry fits belongs to the file before its head was rewritten."""
        places = {fragment.at for fragment in self._fragments}
        lost_offsets = self.listed - places
        if lost_offsets and self.listed & places:
            raise self._data.damaged(
                "no fragment where its list has one", min(lost_offsets), "the box moof", "none"
            )

    def _check_numbers(self) -> None:
        steps = [
            (fragment.number or 0) - (previous.number or 0)
            for previous, fragment in zip(self._fragments, self._fragments[1:], strict=False)
        ]
        if 2 * steps.count(1) < len(steps):  # not counted, or those of other tracks left out
            return
        previous: _Fragment | None = None
        num_skipped = 0
        for fragment, step in zip(self._fragments, (1, *steps), strict=True):
            num_skipped += step - 1 if step > 1 else 0
            if fragment.begin is None:
                continue
            if previous is not None and previous.begin is not None and num_skipped:
                end = previous.begin + previous.ticks
                if fragment.begin - end > _MOST_PAUSE * max(1, previous.ticks):
                    raise self._data.damaged(
                        "fragments are lost: their numbers skip, and their times too",
                        fragment.at,
                        f"a fragment that begins at tick {end}",
                        f"{fragment.begin} after {num_skipped} missing",
                    )
            previous, num_skipped = fragment, 0


def listed_fragments(body: bytes) -> Iterator[int]:
    """Yield the offsets of a track's fragments from the content of the box `tfra`."""
    sizes = int.from_bytes(body[8:12], "big")
    numbers = sum((sizes >> shift & 3) + 1 for shift in (4, 2, 0))
    width = 8 if body[:1] == b"\1" else 4
    item = 2 * width + numbers
    count = int.from_bytes(body[12:16], "big")
    for at in range(_HEAD, min(len(body), _HEAD + item * count) - item + 1, item):
        yield int.from_bytes(body[at + width : at + 2 * width], "big")
