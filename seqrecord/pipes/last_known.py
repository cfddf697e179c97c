"""`last_known`: the features of which clips have the values that were known last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from seqrecord.clip_uses import MissingFrames
from seqrecord.clips import MAX_SETTING, IntArray
from seqrecord.errors import ClipError
from seqrecord.last_known import LastKnown
from seqrecord.pipes.checks import check, check_names
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["check_known", "find_known"]


def check_known(last_known: Any, unknown: Any) -> None:
    """Raise `ClipError` for arguments that make no sense."""
    expected = "names of features, or a dict of how many frames old values may be"
    check_names("last_known", last_known, expected)
    most = last_known.values() if isinstance(last_known, Mapping) else ()
    check("last_known", last_known, all(map(_is_age, most)), expected)
    check("unknown", unknown, unknown is None or unknown == "zeros", 'None or "zeros"')
    if unknown is not None and last_known is None:
        raise ClipError("unknown says nothing", expected="last_known", got=repr(unknown))


def find_known(
    last_known: Collection[str] | Mapping[str, int] | None,
    unknown: str | None,
    dataset: SeqRecordReader,
    selected: IntArray,
) -> dict[str, LastKnown]:
    """Where the features were known last, in the selected episodes, by their rows.

    Raises `ClipError` for a feature that is not read.
    """
    names = list(last_known or ())
    most = last_known if isinstance(last_known, Mapping) else {}
    if wrong := [name for name in names if name not in dataset.features]:
        raise ClipError(
            "last_known has a feature that is not read",
            file=dataset.url,
            expected=", ".join(dataset.features),
            got=", ".join(wrong)[:200],
        )
    known = {}
    for name in names:
        missing = dataset.select([name]).missing_frames()
        some = np.isin(missing.episode, selected)
        of_selected = MissingFrames(missing.episode[some], missing.start[some], missing.stop[some])
        known[name] = LastKnown(of_selected, most.get(name), has_unknown=unknown is not None)
    return known


def _is_age(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and 0 <= value < MAX_SETTING
