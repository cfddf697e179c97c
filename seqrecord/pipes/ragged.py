"""`ragged`: what clips have of features whose shape varies from frame to frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.pipes.checks import are_names, check
from seqrecord.reading.frames import ArraySpec, mask_name
from seqrecord.text import repr_of

__all__ = ["Ragged", "check_ragged", "ragged_arrays"]

_Form: TypeAlias = "Literal['list', 'pad', 'nested']"

Ragged: TypeAlias = "_Form | Mapping[str, _Form | int | Sequence[int]]"
"""How features of variable shapes come: all of them, or by name, there also by sizes."""

_FORMS = ("list", "pad", "nested")


def check_ragged(value: Any) -> None:
    """Raise `ClipError` for what is no `ragged`."""
    if isinstance(value, Mapping):
        names, forms = list(value), list(value.values())
    else:
        names, forms = [], [value]
    known = (f in _FORMS if isinstance(f, str) else names and _are_sizes(f) for f in forms)
    is_right = all(known) and are_names(names)
    expected = '"list", "pad" or "nested", or a dict of these and of sizes by feature'
    check("ragged", value, is_right, expected)


def ragged_arrays(
    ragged: Ragged, stored: Mapping[str, ArraySpec], *, url: str
) -> tuple[dict[str, ArraySpec], frozenset[str]]:
    """What frames have of the stored features, and which of them come as nested tensors.

    A padded feature has its sizes, and behind it stands its mask. Raises `ClipError` for a feature
    that does not come as `ragged` says.
    """
    variable = {n: s for n, s in stored.items() if not s.is_fixed and s.value == "array"}
    forms = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(variable, ragged)
    if wrong := [name for name in forms if name not in variable]:
        raise ClipError(
            "ragged is for features whose shape varies",
            file=url,
            expected=", ".join(variable) or "a dataset that has some",
            got=", ".join(f"{n}: {stored[n]}" if n in stored else repr_of(n, 50) for n in wrong),
        )
    arrays: dict[str, ArraySpec] = {}
    for name, spec in stored.items():
        form = forms.get(name, "list")
        if form in ("list", "nested"):
            _check_nested(name, spec, form, url)
            arrays[name] = spec
            continue
        mask = mask_name(name)
        if mask in stored:
            raise ClipError(
                "a feature has the name of the mask of a padded one",
                file=url,
                feature=name,
                expected=f"features without {mask}, or ragged={{{name!r}: 'list'}}",
                got=mask,
            )
        sizes = _sizes(name, spec, form, url)
        filled = iter(sizes)
        shape = tuple(next(filled) if size is None else size for size in spec.shape)
        arrays[name] = ArraySpec(spec.dtype, shape)
        arrays[mask] = ArraySpec(np.dtype(np.bool_), tuple(sizes), mask_of=name)
    return arrays, frozenset(name for name, form in forms.items() if form == "nested")


def _sizes(name: str, spec: ArraySpec, form: Any, url: str) -> list[int]:
    """What the variable dimensions are padded to."""
    count = spec.shape.count(None)
    if form == "pad":
        if count == 1:  # then bytes tell the size of the largest frame
            row = replace(spec, largest=None).nbytes
            return [max(1, (spec.largest or 0) // row)]
        example = f"ragged={{{name!r}: {(480, 640, 3, 2, 2, 2, 2, 2)[:count]}}}"
        raise ClipError(
            "several dimensions vary, whose largest sizes are not known",
            file=url,
            feature=name,
            expected=f"the {count} sizes to pad to, such as {example}",
            got=spec,
        )
    sizes = [int(size) for size in ([form] if isinstance(form, int | np.integer) else form)]
    if len(sizes) != count:
        raise ClipError(
            "ragged has another number of sizes than there are variable dimensions",
            file=url,
            feature=name,
            expected=count,
            got=f"{sizes} for {spec}",
        )
    padded = math.prod(sizes) * replace(spec, largest=None).nbytes
    if padded < (spec.largest or 0):
        raise ClipError(
            "a frame is larger than what it is padded to",
            file=url,
            feature=name,
            expected=f"sizes of at least {spec.largest} bytes",
            got=f"{sizes}, which are {padded}",
        )
    return sizes


def _check_nested(name: str, spec: ArraySpec, form: Any, url: str) -> None:
    if form == "nested" and (spec.shape[:1] != (None,) or None in spec.shape[1:]):
        raise ClipError(
            "a nested tensor can hold frames that differ in their first dimension only",
            file=url,
            feature=name,
            expected='"list", or sizes to pad to',
            got=spec,
        )


def _are_sizes(value: Any) -> bool:
    sizes = [value] if isinstance(value, int | np.integer) else value
    return isinstance(sizes, Sequence) and all(
        isinstance(size, int | np.integer) and not isinstance(size, bool) and 1 <= size < 2**31
        for size in sizes
    )
