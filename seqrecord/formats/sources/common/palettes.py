"""Images with a palette (PNG, BMP, TIFF): their colours, or their indices if these are labels.

Quantizers and optimizers make such images of colours, and the annotations of VOC, DAVIS and others
are indices. Kind and name of the feature decide.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path

from seqrecord.store.codecs.images import ImageHeader
from seqrecord.store.feature_kinds import LABEL_KINDS, is_named_image, pixel_kind, words_of
from seqrecord.store.originals.inventory import palette_note

_logger = logging.getLogger("seqrecord")

_LABEL_WORDS = frozenset("gt object objects id ids class classes category categories".split())  # noqa: SIM905

Palettes = MutableMapping[str, bool]
"""Features whose first image has a palette, and whether its indices are read."""


def has_indices(name: str, kind: str | None) -> bool:
    """Return whether indices of palettes are values of a feature: by its kind, or else its name."""
    return not _LABEL_WORDS.isdisjoint(words_of(name)) if kind is None else kind in LABEL_KINDS


def form_of(
    header: ImageHeader, name: str, kind: str | None, path: Path, palettes: Palettes
) -> ImageHeader:
    """Return the header with the shape of the feature's frames, and record its palette, if any.

    `kind` is that of the feature; `None` if its name decides. Logs a WARNING for a palette if
    neither tells what its images are.
    """
    if not header.palette:
        return header
    kind = kind or pixel_kind(name, header.dtype, header.shape)
    are_indices = has_indices(name, kind)
    if name not in palettes and kind is None and not is_named_image(name):
        _logger.warning("%s: %s", path, palette_note(name, are_indices=are_indices))
    palettes.setdefault(name, are_indices)
    return header if are_indices else replace(header, shape=(*header.shape, len(header.palette)))
