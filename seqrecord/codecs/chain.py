"""Chains of codecs: looked up in a closed list, bound to the frames of one feature, and undone.

A chain is a list of JSON configurations in the order in which they encode: any number of filters,
which keep the frame's size, then at most one compressor; or one image codec alone; or nothing,
which is raw; or video alone, of which a group of frames is coded together. docs/codecs.md defines
the bytes. Configurations come out of files, so ids and parameters are checked against closed lists;
numcodecs' registry is never asked for anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.base import (
    ERRORS,
    MAX_BUFFER_BYTES,
    Compressor,
    Filter,
    Parameters,
    UIntArray,
    check_size,
    thread_buffer,
)
from seqrecord.codecs.blosc import Blosc
from seqrecord.codecs.compressors import Bz2, Lz4, Lzma, Zlib, Zstd
from seqrecord.codecs.delta import Delta, unbuffered
from seqrecord.codecs.images import (
    FORMATS,
    IMAGE,
    check_storable,
    decode_image_into,
    encode_image,
    probe,
)
from seqrecord.codecs.integers import Bias, SubtractGreen, Zigzag
from seqrecord.codecs.presets import CODEC_NAMES, fast_config, named_chain
from seqrecord.codecs.video.config import VIDEO, named_video, video_config
from seqrecord.errors import CodecError, SchemaError
from seqrecord.schema import MAX_CODECS, CodecConfig, EncodedImage
from seqrecord.text import repr_of

_FILTERS: dict[str, type[Filter]] = {
    codec.codec_id: codec for codec in (Bias, Delta, SubtractGreen, Zigzag)
}
_COMPRESSORS: dict[str, type[Compressor]] = {
    codec.codec_id: codec for codec in (Blosc, Bz2, Lz4, Lzma, Zlib, Zstd)
}
_PARAMETERS: dict[str, Parameters] = {
    **{name: codec.parameters for name, codec in _FILTERS.items()},
    **{name: codec.parameters for name, codec in _COMPRESSORS.items()},
    IMAGE: {"format": FORMATS, "quality": range(1, 101), "exif": ("ignore",)},
}
_REQUIRED = {Delta.codec_id: {"axis"}, IMAGE: {"format"}}
_CACHED = 2 << 20  # bytes of frames before their filters are undone: a processor's cache has them
_EVERY_NAME = (64, 64, 3)  # a shape of uint8 frames that every codec with a name takes


def resolve(
    codec: str | Sequence[CodecConfig],
    dtype: npt.DTypeLike,
    shape: tuple[int | None, ...],
    *,
    feature: str | None,
) -> tuple[CodecConfig, ...]:
    """The chain that `codec` means for a feature of this dtype and frame shape.

    `codec` is a name, of a preset or of an image codec (`jpeg:quality=90`), or a chain of
    configurations, which is checked and returned. A dimension of `None` varies. Raises
    `SchemaError` for an unknown name, id, parameter or value, and for a chain that does not fit
    the dtype and shape.
    """
    dtype = np.dtype(dtype)
    chain: Sequence[CodecConfig]
    if isinstance(codec, str):
        try:
            chain = named_video(codec, dtype, shape) or named_chain(codec, dtype, shape)
        except ValueError as error:
            raise SchemaError(
                f"no such codec: {error}",
                feature=feature,
                expected=f"one of {', '.join(CODEC_NAMES)}, jpeg:quality=90, av1:gop=16, or a list "
                "of codec configurations",
                got=repr_of(codec),
            ) from error
    else:
        chain = codec
    _build(chain, dtype, shape, feature, is_video_allowed=True)
    return tuple(dict(config) for config in chain)


def check_codec(codec: str | Sequence[CodecConfig], *, feature: str | None = None) -> None:
    """Raise `SchemaError` for a codec that no feature can have, whatever its dtype and shape.

    Of a chain only the configurations are looked at, not whether they go together.
    """
    if isinstance(codec, str):
        resolve(codec, np.uint8, _EVERY_NAME, feature=feature)
        return
    try:
        for config in codec:
            if not _is_video(config):
                _check_config(config)
    except (ValueError, TypeError) as error:
        raise SchemaError("not a codec that is allowed", feature=feature, got=str(error)) from error


def image_chain(data: bytes) -> tuple[CodecConfig, ...]:
    """The chain that keeps images like this one encoded; `CodecError` if it cannot be kept."""
    try:
        return ({"id": IMAGE, "format": probe(data).format},)
    except ValueError as error:
        raise CodecError("not an image that can be kept encoded", got=str(error)) from error


_Steps: TypeAlias = "Sequence[tuple[Filter, bool]]"
"""Filters in the order in which they are undone, and whether each waits for the adder."""


class FrameCodec:
    """A chain bound to the dtype and shape of one feature's frames.

    It holds no state between calls and may be used by many threads at once; the heavy steps run
    without the GIL. With `fast`, it encodes in less time into more bytes, which decode to the same
    frame with any other codec of this chain. Raises `SchemaError` for a chain that `resolve` would
    not accept.
    """

    def __init__(
        self,
        configs: Sequence[CodecConfig],
        dtype: npt.DTypeLike,
        shape: tuple[int | None, ...],
        *,
        fast: bool = False,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self._is_fast = fast
        self._filters, self._compressor, self._image = _build(configs, self.dtype, shape, None)
        if fast and self._compressor is not None:
            config = fast_config(configs[-1])
            _, self._compressor, _ = _build((config,), self.dtype, shape, None)

    def encode(self, frame: npt.NDArray[Any] | EncodedImage) -> bytes:
        """Encode one frame of any memory layout and byte order.

        Raises `CodecError` for a frame of another dtype or shape, or an image that is not as
        declared.
        """
        try:
            if isinstance(frame, EncodedImage):
                return self._keep(frame.data)
            self._check(frame)
            values = np.ascontiguousarray(frame, dtype=self.dtype).reshape(frame.shape)
            if self._image is not None:
                parameters = self._image["format"], self._image.get("quality")
                return encode_image(values, *parameters, fast=self._is_fast)
            if values.size == 0:
                return b""
            numbers = _as_unsigned(values)
            for step in self._filters:
                numbers = step.encode(numbers)
            if self._compressor is None:
                return numbers.tobytes()
            return self._compressor.encode(numbers)
        except ERRORS as error:
            raise CodecError("a frame cannot be encoded", got=str(error)) from error

    def decode_into(self, blob: memoryview | bytes, out: npt.NDArray[Any]) -> None:
        """Decode one blob into `out`, a C-contiguous array of the frame's dtype and shape.

        Raises `CodecError`, leaving anything at all in `out`, unless the blob decodes to exactly
        its bytes. Allocates no more than a small multiple of them, whatever the blob says.
        """
        self._check(out)
        if not out.flags.c_contiguous or not out.flags.writeable or out.dtype != self.dtype:
            raise CodecError("frames are decoded into C-contiguous arrays of their own dtype")
        view = memoryview(blob).cast("B")
        try:
            if self._image is not None:
                decode_image_into(view, self._image["format"], out, exif=self._image.get("exif"))
                return
            numbers = _as_unsigned(out)[np.newaxis]
            with unbuffered():
                self._decode([view], numbers, self._steps(numbers))
        except ERRORS as error:
            raise CodecError("a frame does not decode", got=str(error)) from error

    def decode_frames(self, blobs: Sequence[memoryview], out: npt.NDArray[Any]) -> bool:
        """As `decode_into` of each blob into a frame of `out`, [n, …], C-contiguous: several frames
        at a time, in fewer calls.

        Whether that was done; if not, `decode_into` does it, or names the damaged blob.
        """
        count = len(blobs)
        if not count or not out.size or self._image is not None or out.dtype != self.dtype:
            return False
        self._check(out[0, ...])
        if len(out) != count or not out.flags.c_contiguous or not out.flags.writeable:
            raise CodecError("frames are decoded into C-contiguous arrays of their own dtype")
        numbers = _as_unsigned(out)
        steps = self._steps(numbers)
        step = max(1, _CACHED * count // out.nbytes) if steps else count
        try:
            with unbuffered():
                for first in range(0, count, step):
                    some = slice(first, first + step)
                    self._decode(blobs[some], numbers[some], steps)
        except ERRORS:
            return False
        return True

    def _steps(self, numbers: UIntArray) -> _Steps:
        """How the filters are undone in frames [n, …]."""
        shape, size = numbers.shape[1:], numbers.itemsize
        return [
            (step, isinstance(step, Delta) and step.is_serial(shape, size))
            for step in (reversed(self._filters) if numbers.size else ())
        ]

    def _decode(self, views: Sequence[memoryview], numbers: UIntArray, steps: _Steps) -> None:
        """Decompress frames and undo the filters, into [n, …]; one of `ERRORS` for a blob of
        another size.

        Memory that is not in the cache, as a frame's place seldom is, is slow to write to. A filter
        that waits for the adder hides that. If there is one, it is the one that writes there, and
        what comes before it stays in a temporary.
        """
        source = numbers
        for _, waits in steps:
            if waits and numbers.nbytes <= MAX_BUFFER_BYTES:
                source = thread_buffer("frame", numbers.size, numbers.dtype).reshape(numbers.shape)
                break
        targets = source.reshape(-1).view(np.uint8).reshape(len(views), -1)
        if self._compressor is not None and numbers.size:
            self._compressor.decode_frames(views, targets)
        else:
            for view, target in zip(views, targets, strict=True):
                check_size(len(view), target.size)
                target[:] = np.frombuffer(view, np.uint8)
        for step, waits in steps:
            target = numbers if waits else source
            if isinstance(step, Delta):
                step.decode_frames(source, target)
            else:
                step.decode(source, target)
            source = target

    def _check(self, frame: npt.NDArray[Any]) -> None:
        fits = frame.shape == self.shape or (
            len(frame.shape) == len(self.shape)
            and all(want in (None, got) for want, got in zip(self.shape, frame.shape, strict=True))
        )
        if not fits or frame.dtype.newbyteorder("<") != self.dtype.newbyteorder("<"):
            raise CodecError(
                "a frame does not fit its codec",
                expected=f"{self.dtype.name} {list(self.shape)}",
                got=f"{frame.dtype.name} {list(frame.shape)}",
            )

    def _keep(self, data: bytes) -> bytes:
        if self._image is None:
            raise ValueError("an encoded image for a feature that does not keep its images encoded")
        header = probe(data)
        wanted = self._image["format"]
        if header.format != wanted and (wanted != "any" or header.format == "npy"):
            raise ValueError(f"a {header.format} image, expected {self._image['format']}")
        self._check(np.broadcast_to(np.zeros((), header.dtype), header.shape))
        return data


def _build(
    configs: Sequence[CodecConfig],
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    feature: str | None,
    *,
    is_video_allowed: bool = False,
) -> tuple[list[Filter], Compressor | None, dict[str, Any] | None]:
    """Filters, compressor and image parameters of a chain, all checked; nothing is trusted."""
    filters: list[Filter] = []
    compressor: Compressor | None = None
    try:
        if len(configs) > MAX_CODECS:
            raise ValueError(f"a chain of {len(configs)} codecs, at most {MAX_CODECS} are allowed")
        probe_shape = tuple(1 if n is None else n for n in shape)
        if any(_is_video(config) for config in configs):
            video_config(configs, dtype, tuple(shape))
            if not is_video_allowed:
                raise ValueError("video is not coded frame by frame")
            return [], None, None
        for position, config in enumerate(configs):
            name, params = _check_config(config)
            if name == IMAGE:
                if len(configs) != 1:
                    raise ValueError("an image codec stands alone")
                check_storable(dtype, tuple(shape), params["format"])
                return [], None, params
            if name in _FILTERS:
                step = _FILTERS[name](**params)
                step.check(_unsigned_shape(dtype, probe_shape), _unsigned_size(dtype))
                filters.append(step)
            elif position != len(configs) - 1:
                raise ValueError(f"{name} is not the last of its chain")
            else:
                compressor = _COMPRESSORS[name](**params)
    except (ValueError, TypeError) as error:
        raise SchemaError("not a codec that is allowed", feature=feature, got=str(error)) from error
    return filters, compressor, None


def _is_video(config: object) -> bool:
    return isinstance(config, Mapping) and config.get("id") == VIDEO


def _check_config(config: object) -> tuple[str, dict[str, Any]]:
    """The id and parameters of a configuration; `ValueError` unless all of it is known."""
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise ValueError(f"a codec is an object with an id, not {repr_of(config, 100)}")
    name = config["id"]
    if name not in _PARAMETERS:
        expected = ", ".join(sorted(_PARAMETERS))
        raise ValueError(f"unknown id {name[:50]!r}, expected one of {expected}")
    params = {key: value for key, value in config.items() if key != "id"}
    for key, value in params.items():
        allowed = _PARAMETERS[name].get(key)
        if allowed is None or not _is_allowed(value, allowed):
            raise ValueError(f"{name} does not take {str(key)[:50]!r} of {repr_of(value, 50)}")
    missing = _REQUIRED.get(name, set()) - set(params)
    if missing:
        raise ValueError(f"{name} needs {', '.join(sorted(missing))}")
    return name, params


def _is_allowed(value: object, allowed: Collection[object]) -> bool:
    # 1, True and 1.0 are equal and in each other's ranges, yet only one of them is what is meant.
    if isinstance(value, bool) or isinstance(next(iter(allowed)), bool):
        return isinstance(value, bool) and isinstance(next(iter(allowed)), bool)
    return (value is None or isinstance(value, (int, str))) and value in allowed


def _as_unsigned(array: npt.NDArray[Any]) -> UIntArray:
    """A C-contiguous array's bits as little-endian unsigned integers, a view.

    A complex number is two of them, on a new last axis.
    """
    size = _unsigned_size(array.dtype)
    numbers: UIntArray = array.reshape(-1).view(f"<u{size}")
    return numbers.reshape(_unsigned_shape(array.dtype, array.shape))


def _unsigned_size(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _unsigned_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 2) if dtype.kind == "c" else shape
