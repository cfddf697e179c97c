"""Codecs: presets, lookup in a closed list, and size-bounded decoding into a given buffer."""

from seqrecord.codecs.chain import (
    PRESETS,
    CodecConfig,
    EncodedImage,
    FrameCodec,
    image_chain,
    probe,
    resolve,
)

__all__ = [
    "PRESETS",
    "CodecConfig",
    "EncodedImage",
    "FrameCodec",
    "image_chain",
    "probe",
    "resolve",
]
