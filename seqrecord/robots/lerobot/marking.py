"""Marks a dataset in LeRobot's metadata as readable by seqrecord."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

from seqrecord.errors import DestinationError, SourceError
from seqrecord.formats.sources.lerobot.layout import INFO, read_info

STORAGE_FORMAT = "seqrecord"


def mark_dataset(root: str | PathLike[str], original: str | PathLike[str] | None = None) -> None:
    """Mark the dataset in the folder `root`, so that LeRobot's main branch reads it by seqrecord.

    Sets `"storage_format": "seqrecord"` in `meta/info.json`; LeRobot 0.6.1 ignores it. An unmarked
    `meta/` is never replaced.

    Args:
        root: folder of LeRobot's files, or of records.
        original: the LeRobot dataset of v3.0 from which the records were written; its `meta/` is
            copied.

    Raises `SourceError` without a `meta/info.json` of v3.0, and `DestinationError` if `root` has an
    unmarked `meta/` and `original` is given.

    Usage::

        seqrecord.lerobot.mark_dataset("lerobot/")
    """
    source, path = Path(original or root), Path(root) / INFO
    if read_info(source).version != 3:
        raise SourceError("LeRobot's main branch reads only v3.0", file=str(source / INFO))
    info = json.loads((source / INFO).read_text()) | {"storage_format": STORAGE_FORMAT}
    if original is not None and path.parent.exists() and not _is_marked(path):
        raise DestinationError("folder has a `meta/` of another dataset", file=str(path.parent))
    with TemporaryDirectory(prefix=".seqrecord-", dir=root) as temporary:
        new = Path(temporary) / INFO
        if original is None:
            new.parent.mkdir()
        else:
            shutil.copytree(source / new.parent.name, new.parent)
        new.write_text(json.dumps(info, indent=4))
        if path.parent.exists():
            shutil.copytree(new.parent, path.parent, dirs_exist_ok=True, copy_function=shutil.move)
        else:
            new.parent.rename(path.parent)


def _is_marked(path: Path) -> bool:
    with suppress(OSError, ValueError, TypeError, KeyError):
        return bool(json.loads(path.read_text())["storage_format"] == STORAGE_FORMAT)
    return False
