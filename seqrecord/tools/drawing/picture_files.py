"""Checks before a picture is drawn: that matplotlib is installed, and the file to write to."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from seqrecord.errors import LocationError
from seqrecord.lazy import required
from seqrecord.storage import local_path

_FORMATS = ("jpg", "pdf", "png", "svg", "webp")


def require_matplotlib() -> None:
    """Raise `MissingPackageError` where matplotlib is not installed."""
    said = "pictures are drawn by matplotlib, the extra `view`: pip install matplotlib"
    required("matplotlib", said)


def picture_file(path: str | PathLike[str]) -> tuple[Path, str]:
    """Where a picture goes, and its format as `Figure.savefig` takes it: PNG without an ending.

    Raises `LocationError` for a URL and for an ending that is no picture's.
    """
    target = local_path(path, "the picture")
    ending = target.suffix.lower().removeprefix(".") or "png"
    if ending not in _FORMATS:
        raise LocationError(
            "a picture of an unknown format",
            file=str(target),
            expected=" or ".join(f".{name}" for name in _FORMATS),
            got=target.suffix,
        )
    return target, ending
