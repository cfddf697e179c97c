"""Codecs: presets, lookup in a closed list, decoding into buffers of known size."""

from seqrecord.codecs.chain import (
    FrameCodec,
    check_codec,
    image_chain,
    resolve,
)
from seqrecord.codecs.images import probe
from seqrecord.codecs.presets import CODEC_NAMES, PRESETS

__all__ = [
    "CODEC_NAMES",
    "PRESETS",
    "FrameCodec",
    "check_codec",
    "image_chain",
    "probe",
    "resolve",
]
