"""What an inventory tells of video files whose end is early or cannot be verified."""

from __future__ import annotations

import logging

from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.store.text import counted

_logger = logging.getLogger("seqrecord")

_MOST_NAMED = 10  # files


class FileNotes:
    """Collect the notes of files; those on missing frames are logged as warnings."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def add(self, file: VideoFile) -> None:
        """Take a file's notes. Raises `SourceError` like `VideoFile.contents`."""
        for note in file.contents.notes:
            if "not verifiable" not in note:
                _logger.warning("%s: %s", file.path, note)
            self._files.setdefault(note, []).append(file.path.name)

    def lines(self) -> list[str]:
        """Return a line for each note, with the names of its files."""
        lines = []
        for note, names in self._files.items():
            num_more = len(names) - _MOST_NAMED
            suffix = f" and {counted(num_more, 'other file')}" if num_more > 0 else ""
            lines.append(f"{', '.join(names[:_MOST_NAMED])}{suffix}: {note}")
        return lines
