"""Codecs: presets, lookup in a closed list, and size-bounded decoding into a given buffer."""

from seqrecord.codecs.chain import (
    CODEC_NAMES,
    PRESETS,
    FrameCodec,
    check_codec,
    image_chain,
    probe,
    resolve,
)

__all__ = [
    "CODEC_NAMES",
    "PRESETS",
    "FrameCodec",
    "check_codec",
    "image_chain",
    "probe",
    "resolve",
]
