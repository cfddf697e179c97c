"""Video codec configuration, as stored in the schema."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqrecord.store.bfloat16 import BFLOAT16, dtype_name
from seqrecord.store.codecs.base import named_parameters
from seqrecord.store.schema import CodecConfig, FeatureSpec
from seqrecord.video.depth import DepthScale

VIDEO = "video"
"""Id of the codec configuration of a video feature."""

MAX_GOP_FRAMES = 256
"""Maximum visible frames of a GOP: decoding a frame requires all frames before it."""

GREY16 = "gray16le"
"""Pixel format in which FFV1 encodes frames uint16 [H, W]."""

DEEP_GREY = ("gray10le", "gray12le", GREY16)
"""Pixel formats of frames uint16 [H, W], as decoded; frames of others are uint8 [H, W, 3]."""

_LIMITED, _FULL = "limited", "full"
_GOP_BYTES = 48 << 20  # decoded bytes of a default GOP, about a chunk of other images
_GOP_FRAMES = 32
_MIN_GOP_FRAMES = 8  # shorter GOPs are hardly smaller than images

_SUBSAMPLED = [f"{start}{chroma}p" for start in ("yuv", "yuvj") for chroma in (420, 422, 440, 444)]
_DEEP = [f"yuv{chroma}p{bits}le" for chroma in (420, 422, 444) for bits in (10, 12)]
_GREY_AND_RGB = ["gray", "gbrp", "gbrp10le", "gbrp12le", "bgr0"]
_PIXEL_FORMATS = frozenset([*DEEP_GREY, *_GREY_AND_RGB, *_SUBSAMPLED, *_DEEP])
_MATRICES = range(15)  # H.273, MatrixCoefficients


@dataclass(frozen=True)
class _Kind:
    """Properties of a video codec: range of `quality` from best to worst, and defaults."""

    qualities: range
    quality: int | None
    pixel_formats: tuple[str, ...]  # supported by the encoder; the first is the default


VIDEO_CODECS: Mapping[str, _Kind] = {
    "h264": _Kind(range(52), 23, ("yuv420p", "yuv444p")),
    "hevc": _Kind(range(52), 26, ("yuv420p", "yuv444p")),
    "av1": _Kind(range(1, 64), 30, ("yuv420p",)),
    "vp9": _Kind(range(64), 31, ("yuv420p", "yuv444p")),
    "ffv1": _Kind(range(0), None, ("bgr0", GREY16)),
}
"""Video codecs by name, as in `--codec image=NAME`. Only FFV1 is lossless and has 16 bits."""


@dataclass(frozen=True)
class VideoConfig:
    """Parameters for decoding a video feature and encoding its new frames.

    Args:
        codec: a name in `VIDEO_CODECS`.
        pixel_format: FFmpeg's name for the format of decoded frames.
        matrix: YUV to RGB matrix, a number of H.273, if the stream declares none; `None` leaves
            the choice to the decoder.
        range: "limited" or "full", if the stream declares none.
        quality: for encoding: lower is better. FFV1 takes none.
        gop: number of frames in each encoded GOP.
        depth: scale of the depth codes of a deep grey video; frames are then metres, float32.

    Raises `ValueError` for invalid values.
    """

    codec: str
    pixel_format: str
    matrix: int | None = None
    range: str | None = None
    quality: int | None = None
    gop: int | None = None
    depth: DepthScale | None = None

    def __post_init__(self) -> None:
        values: Mapping[str, Any] = vars(self)  # unchecked types
        kind = VIDEO_CODECS.get(self.codec) if isinstance(values["codec"], str) else None
        if kind is None:
            raise ValueError(
                f"no video codec {self.codec!r:.50}, expected any of {', '.join(VIDEO_CODECS)}"
            )
        if values["pixel_format"] not in sorted(_PIXEL_FORMATS):
            raise ValueError(f"no pixel format {self.pixel_format!r:.50}")
        if self.pixel_format == GREY16 and self.codec != "ffv1":
            raise ValueError(f"{self.codec} does not support pixel format {GREY16}; use ffv1")
        if self.depth is not None and not self.is_grey:
            raise ValueError(f"depth codes do not fit pixel format {self.pixel_format}")
        if self.range not in (None, _LIMITED, _FULL):
            raise ValueError(f"no colour range {self.range!r:.50}")
        for name, allowed in (
            ("matrix", _MATRICES),
            ("quality", kind.qualities),
            ("gop", range(1, MAX_GOP_FRAMES + 1)),
        ):
            value = values[name]
            if value is not None and (type(value) is not int or value not in allowed):
                takes = f"{allowed[0]} to {allowed[-1]}" if allowed else "none"
                raise ValueError(f"{self.codec} takes {name} {takes}, not {value!r:.50}")

    @classmethod
    def from_json(cls, config: CodecConfig) -> VideoConfig:
        """Parse the configuration in a schema; raises `ValueError` if malformed."""
        items = {key: value for key, value in config.items() if key != "id"}
        unknown = set(items) - set(cls.__dataclass_fields__)
        if config.get("id") != VIDEO or unknown or None in items.values():
            raise ValueError(f"not a video configuration: {dict(config)!r:.100}")
        if missing := {"codec", "pixel_format"} - set(items):
            raise ValueError(f"video needs {', '.join(sorted(missing))}")
        if "depth" in items:
            items["depth"] = DepthScale.from_json(items["depth"])
        return cls(**items)

    @classmethod
    def of(cls, spec: FeatureSpec) -> VideoConfig | None:
        """The configuration of a video feature; `None` for features with other codecs."""
        has_config = bool(spec.codec) and spec.codec[0]["id"] == VIDEO
        return cls.from_json(spec.codec[0]) if has_config else None

    def to_json(self) -> dict[str, Any]:
        """Configuration for a schema: all values except `None`."""
        depth = {} if self.depth is None else {"depth": dict(vars(self.depth))}
        return {"id": VIDEO} | {k: v for k, v in vars(self).items() if v is not None} | depth

    @property
    def decoding(self) -> VideoConfig:
        """The configuration without parameters for encoding."""
        return replace(self, quality=None, gop=None)

    @property
    def is_grey(self) -> bool:
        """Whether decoded frames are [H, W], of more than 8 bits."""
        return self.pixel_format in DEEP_GREY

    @property
    def bits(self) -> int:
        """Bits of a decoded value."""
        match = re.search(r"(1[026])le", self.pixel_format)
        return int(match[1]) if match else 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of decoded frames."""
        if self.depth is not None:
            return np.dtype(np.float32)
        return np.dtype(np.uint16 if self.is_grey else np.uint8)

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of decoded frames with this height and width."""
        return (height, width) if self.is_grey else (height, width, 3)

    def encoding(self, height: int, width: int) -> VideoConfig:
        """The configuration with defaults for `quality` and `gop`, for frames of this size.

        The default GOP takes 48 MiB decoded, with 8 to 32 frames, rounded down to a power of two.
        For FFV1 it is 1, so that each frame can be read alone. Deep grey is encoded as FFV1, which
        loses nothing, and the formats `yuvj…` in limited range.
        """
        if self.is_grey and (self.codec, self.pixel_format) != ("ffv1", GREY16):
            return VideoConfig("ffv1", GREY16, depth=self.depth).encoding(height, width)
        gop = self.gop
        if gop is None and self.codec == "ffv1":
            gop = 1
        elif gop is None:
            fitting = max(1, _GOP_BYTES // (height * width * 3))
            gop = 1 << (min(_GOP_FRAMES, max(_MIN_GOP_FRAMES, fitting)).bit_length() - 1)
        quality = VIDEO_CODECS[self.codec].quality if self.quality is None else self.quality
        pixels = self.pixel_format.replace("yuvj", "yuv")
        return replace(self, pixel_format=pixels, quality=quality, gop=gop)


def named_video(
    text: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> tuple[CodecConfig, ...] | None:
    """Chain for a name such as `av1` or `av1:quality=30,gop=16,pixel_format=yuv420p`.

    `None` if the name is not a video codec. Raises `ValueError` for invalid parameters, and for
    frames that cannot be video.
    """
    name, _, parameters = text.partition(":")
    if name not in VIDEO_CODECS:
        return None
    is_deep = dtype.kind == "u" and dtype.itemsize == 2
    if is_deep and name != "ffv1":
        raise ValueError(f"{name} would lose bits of {dtype.name}; use ffv1, which is lossless")
    params = named_parameters(
        name, parameters, ("quality", "gop", "pixel_format"), ("pixel_format",)
    )
    params.setdefault("pixel_format", GREY16 if is_deep else VIDEO_CODECS[name].pixel_formats[0])
    config = VideoConfig(name, **params)
    _check_shape(config, dtype, shape)
    if config.pixel_format not in VIDEO_CODECS[name].pixel_formats:
        allowed = ", ".join(VIDEO_CODECS[name].pixel_formats)
        raise ValueError(f"{name} encodes pixel formats {allowed}, not {config.pixel_format}")
    height, width = (n or 0 for n in shape[:2])
    if config.pixel_format == "yuv420p" and (height % 2 or width % 2):
        raise ValueError(f"{name} with yuv420p needs an even height and width, not {list(shape)}")
    return (config.encoding(height, width).to_json(),)


def video_config(
    configs: Sequence[CodecConfig], dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> VideoConfig:
    """Checked video configuration of a feature's chain; raises `ValueError` if invalid."""
    if len(configs) != 1:
        raise ValueError("a video codec cannot be combined with other codecs")
    config = VideoConfig.from_json(configs[0])
    _check_shape(config, dtype, shape)
    return config


def _check_shape(config: VideoConfig, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> None:
    """Raise `ValueError` unless dtype and shape match the video configuration."""
    got, are_floats = f"{dtype_name(dtype)} {list(shape)}", dtype.kind == "f" or dtype == BFLOAT16
    if are_floats and len(shape) > 1 and config.depth is None:
        raise ValueError(
            f"video cannot store floats, got {got}: `balanced` stores them without loss; for "
            "video use integers, such as depth in mm or 1/5000 m, uint16 [H, W], with `ffv1`"
        )
    sizes = tuple(n or 0 for n in shape)
    height, width = (*sizes, 0, 0)[:2]
    if not all(sizes) or (dtype, sizes) != (config.dtype, config.shape(height, width)):
        expected = f"{config.dtype.name} [H, W{'' if config.is_grey else ', 3'}]"
        deep_form = "" if config.is_grey else ", or uint16 [H, W] in ffv1,"
        raise ValueError(f"video of {config.pixel_format} stores {expected}{deep_form} not {got}")
    if max(height, width) > 16384 or math.prod(sizes) > 1 << 29:
        raise ValueError(f"video of {list(shape)} is too large; at most 16384 a side")
