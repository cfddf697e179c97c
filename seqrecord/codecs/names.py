"""Codecs by name: a preset, or an image codec that may take parameters, `jpeg:quality=90`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from seqrecord.codecs.presets import PRESETS, CodecConfig, preset_chain

__all__ = ["CODEC_NAMES", "named_chain"]

_IMAGES: dict[str, tuple[CodecConfig, CodecConfig]] = {
    "png": ({"id": "seqrecord.image", "format": "png"}, {}),
    "jpeg": ({"id": "seqrecord.image", "format": "jpeg"}, {"quality": 90}),
}
"""By name: the configuration, and the parameters that may be given, with their defaults."""

CODEC_NAMES: tuple[str, ...] = (*PRESETS, *_IMAGES)
"""All names: the presets first."""


def named_chain(
    text: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> tuple[CodecConfig, ...]:
    """The chain that `NAME` or `NAME:PARAMETER=VALUE,…` means for frames of this dtype and shape.

    Values are JSON. Raises `ValueError` for a name or parameter that is not known; values are not
    checked.
    """
    name, _, rest = text.partition(":")
    if name not in CODEC_NAMES:
        raise ValueError(f"no codec is named {name[:50]!r}")
    config, defaults = _IMAGES.get(name, ({}, {}))
    given = dict(_parameter(name, item, defaults) for item in rest.split(",")) if rest else {}
    if name in PRESETS:
        return preset_chain(name, dtype, shape)
    return ({**config, **defaults, **given},)


def _parameter(name: str, text: str, allowed: CodecConfig) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if key not in allowed or not equals:
        takes = ", ".join(allowed) or "no parameter"
        raise ValueError(f"{name} takes {takes}, not {text[:50]!r}")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {key} is not a number: {value[:50]!r}") from error
