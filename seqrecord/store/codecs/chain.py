"""Chains of codecs: lookup in a closed list, encoding and decoding of a feature's frames.

A chain is a list of JSON configurations in the order of encoding: any number of filters, which keep
the size of a frame, then at most one compressor. Alternatives are a single image codec, the single
codec of a page kind (video, which encodes groups of frames), or an empty chain for raw frames.
docs/codecs.md defines the bytes. Configurations come from files, so ids and parameters are checked
against closed lists; the registry of numcodecs is not used for lookups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, SchemaError
from seqrecord.store.areas import CODEC_CHECKS, CODEC_KINDS, load_entry
from seqrecord.store.bfloat16 import dtype_name
from seqrecord.store.codecs.base import (
    ERRORS,
    MAX_BUFFER_BYTES,
    Compressor,
    Filter,
    Parameters,
    UIntArray,
    check_size,
    thread_buffer,
)
from seqrecord.store.codecs.blosc import Blosc
from seqrecord.store.codecs.compressors import Lz4, Zstd
from seqrecord.store.codecs.delta import Delta, unbuffered
from seqrecord.store.codecs.images import (
    FORMATS,
    IMAGE,
    check_storable,
    decode_image_into,
    encode_image,
    probe,
)
from seqrecord.store.codecs.integers import Bias, SubtractGreen
from seqrecord.store.codecs.presets import CODEC_NAMES, named_chain
from seqrecord.store.schema import MAX_CODECS, CodecConfig, EncodedImage
from seqrecord.store.text import repr_of

_FILTERS: dict[str, type[Filter]] = {
    codec.codec_id: codec for codec in (Bias, Delta, SubtractGreen)
}
_COMPRESSORS: dict[str, type[Compressor]] = {codec.codec_id: codec for codec in (Blosc, Lz4, Zstd)}
_PARAMETERS: dict[str, Parameters] = {
    **{name: codec.parameters for name, codec in _FILTERS.items()},
    **{name: codec.parameters for name, codec in _COMPRESSORS.items()},
    IMAGE: {"format": FORMATS, "quality": range(1, 101), "exif": ("ignore",)},
}
CODEC_IDS = (*_PARAMETERS, *CODEC_KINDS)
"""The closed list of codecs: every id that a file may contain."""

_REQUIRED = {Delta.codec_id: {"axis"}, IMAGE: {"format"}}
_CACHED = 2 << 20  # bytes of frames decoded before filtering: they fit into a processor's cache
_EVERY_NAME = (64, 64, 3)  # a shape that every named codec supports with uint8


def resolve(
    codec: str | Sequence[CodecConfig],
    dtype: npt.DTypeLike,
    shape: tuple[int | None, ...],
    *,
    feature: str | None,
) -> tuple[CodecConfig, ...]:
    """Codec chain of a feature with this dtype and frame shape; `None` is a variable dimension.

    `codec` is the name of a preset or codec, with parameters (`jpeg:quality=90`), or a chain of
    configurations to check. Raises `SchemaError` for an unknown name, id, parameter or value, and
    for a chain that does not support dtype and shape.
    """
    dtype = np.dtype(dtype)
    chain: Sequence[CodecConfig]
    if isinstance(codec, str):
        try:
            chain = named_chain(codec, dtype, shape)
        except ValueError as error:
            raise SchemaError(
                f"no such codec: {error}",
                feature=feature,
                expected=f"any of {', '.join(CODEC_NAMES)}, jpeg:quality=90, av1:gop=16, or a list "
                "of codec configurations",
                got=repr_of(codec),
            ) from error
    else:
        chain = codec
    _build(chain, dtype, shape, feature, is_page_allowed=True)
    return tuple(dict(config) for config in chain)


def check_codec(codec: str | Sequence[CodecConfig], *, feature: str | None = None) -> None:
    """Raise `SchemaError` for a codec that is invalid for every dtype and shape.

    Checks the configurations of a chain, but not their combination.
    """
    if isinstance(codec, str):
        resolve(codec, np.uint8, _EVERY_NAME, feature=feature)
        return
    try:
        for config in codec:
            if not _is_of_pages(config):
                _check_config(config)
    except (ValueError, TypeError) as error:
        raise SchemaError("invalid codec", feature=feature, got=str(error)) from error


def image_chain(data: bytes) -> tuple[CodecConfig, ...]:
    """Chain that stores images such as this one unchanged; raises `CodecError` if unsupported."""
    try:
        return ({"id": IMAGE, "format": probe(data).format},)
    except ValueError as error:
        raise CodecError("this image cannot be stored encoded", got=str(error)) from error


_Steps: TypeAlias = "Sequence[tuple[Filter, bool]]"
"""Filters in decoding order, each with whether it is bound by the adder: see `delta`."""


class FrameCodec:
    """A codec chain for frames of one dtype and shape.

    Stateless between calls and thread-safe; the expensive steps release the GIL. Raises
    `SchemaError` for a chain that `resolve` does not accept.
    """

    def __init__(
        self,
        configs: Sequence[CodecConfig],
        dtype: npt.DTypeLike,
        shape: tuple[int | None, ...],
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self._filters, self._compressor, self._image = _build(configs, self.dtype, shape, None)

    def encode(self, frame: npt.NDArray[Any] | EncodedImage) -> bytes:
        """Encode one frame of any memory layout and byte order.

        Raises `CodecError` for another dtype or shape, or an image of another format.
        """
        try:
            if isinstance(frame, EncodedImage):
                return self._keep(frame.data)
            self._check(frame)
            values = np.ascontiguousarray(frame, dtype=self.dtype).reshape(frame.shape)
            if self._image is not None:
                return encode_image(values, self._image["format"], self._image.get("quality"))
            if values.size == 0:
                return b""
            numbers = _as_unsigned(values)
            for step in self._filters:
                numbers = step.encode(numbers)
            if self._compressor is None:
                return numbers.tobytes()
            return self._compressor.encode(numbers)
        except ERRORS as error:
            raise CodecError("cannot encode a frame", got=str(error)) from error

    def decode_into(self, blob: memoryview | bytes, out: npt.NDArray[Any]) -> None:
        """Decode one blob into `out`, a C-contiguous array of the frame's dtype and shape.

        Raises `CodecError` unless the blob decodes to exactly the size of `out`, whose contents are
        then undefined. Memory use is a small multiple of that size, whatever the blob declares.
        """
        self._check_target(out, out)
        view = memoryview(blob).cast("B")
        try:
            if self._image is not None:
                decode_image_into(view, self._image["format"], out, exif=self._image.get("exif"))
                return
            numbers = _as_unsigned(out)[np.newaxis]
            with unbuffered():
                self._decode([view], numbers, self._steps(numbers))
        except ERRORS as error:
            raise CodecError("cannot decode a frame", got=str(error)) from error

    def decode_frames(self, blobs: Sequence[memoryview], out: npt.NDArray[Any]) -> bool:
        """Decode each blob into a frame of `out`, [n, …], C-contiguous, in fewer calls.

        Returns false if this failed or is unsupported; then use `decode_into` for each blob, which
        raises for the damaged one.
        """
        count = len(blobs)
        if not count or not out.size or self._image is not None or out.dtype != self.dtype:
            return False
        self._check_target(out, out[0, ...])
        numbers = _as_unsigned(out)
        steps = self._steps(numbers)
        step = max(1, _CACHED * count // out.nbytes) if steps else count
        try:
            with unbuffered():
                for start in range(0, count, step):
                    part = slice(start, start + step)
                    self._decode(blobs[part], numbers[part], steps)
        except ERRORS:
            return False
        return True

    def _steps(self, numbers: UIntArray) -> _Steps:
        """Decoding steps of the filters for frames [n, …]."""
        shape, size = numbers.shape[1:], numbers.itemsize
        return [
            (step, step.is_serial(shape, size))
            for step in (reversed(self._filters) if numbers.size else ())
        ]

    def _decode(self, views: Sequence[memoryview], numbers: UIntArray, steps: _Steps) -> None:
        """Decompress frames into [n, …] and undo the filters; a failure raises one in `ERRORS`.

        Writing to memory outside the cache is slow, and the destination usually is outside. A
        filter bound by the adder hides this latency. If there is one, it writes to the destination,
        and earlier steps use a temporary buffer.
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
            step.decode(source, target)
            source = target

    def _check_target(self, out: npt.NDArray[Any], frame: npt.NDArray[Any]) -> None:
        self._check(frame)
        if not out.flags.c_contiguous or not out.flags.writeable or out.dtype != self.dtype:
            raise CodecError("`out` must be a writable C-contiguous array of the frame's dtype")

    def _check(self, frame: npt.NDArray[Any]) -> None:
        fits = frame.shape == self.shape or (
            len(frame.shape) == len(self.shape)
            and all(want in (None, got) for want, got in zip(self.shape, frame.shape, strict=True))
        )
        if not fits or frame.dtype.newbyteorder("<") != self.dtype.newbyteorder("<"):
            raise CodecError(
                "the frame's dtype or shape differs from the feature's",
                expected=f"{dtype_name(self.dtype)} {list(self.shape)}",
                got=f"{dtype_name(frame.dtype)} {list(frame.shape)}",
            )

    def _keep(self, data: bytes) -> bytes:
        if self._image is None:
            raise ValueError("an encoded image for a feature that stores no encoded images")
        header = probe(data)
        image_format = self._image["format"]
        if header.format != image_format and (image_format != "any" or header.format == "npy"):
            raise ValueError(f"a {header.format} image, expected {self._image['format']}")
        self._check(np.broadcast_to(np.zeros((), header.dtype), header.shape))
        return data


def _build(
    configs: Sequence[CodecConfig],
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    feature: str | None,
    *,
    is_page_allowed: bool = False,
) -> tuple[list[Filter], Compressor | None, dict[str, Any] | None]:
    """Filters, compressor and image parameters of an untrusted chain, checked."""
    filters: list[Filter] = []
    compressor: Compressor | None = None
    for config in configs if isinstance(configs, (list, tuple)) else ():  # from a file: any JSON
        _check_removed(config)
    try:
        if len(configs) > MAX_CODECS:
            raise ValueError(f"a chain of {len(configs)} codecs; at most {MAX_CODECS} are allowed")
        probe_shape = tuple(1 if n is None else n for n in shape)
        for config in filter(_is_of_pages, configs):
            load_entry(CODEC_CHECKS[config["id"]])(configs, dtype, tuple(shape))
            if not is_page_allowed:
                raise ValueError(f"a {config['id']} codec cannot encode single frames")
            return [], None, None
        for position, config in enumerate(configs):
            name, params = _check_config(config)
            if name == IMAGE:
                if len(configs) != 1:
                    raise ValueError("an image codec cannot be combined with other codecs")
                check_storable(dtype, tuple(shape), params["format"])
                return [], None, params
            if name in _FILTERS:
                step = _FILTERS[name](**params)
                step.check(_unsigned_shape(dtype, probe_shape), _unsigned_size(dtype))
                filters.append(step)
            elif position != len(configs) - 1:
                raise ValueError(f"{name} must be the last codec of a chain")
            else:
                compressor = _COMPRESSORS[name](**params)
    except (ValueError, TypeError) as error:
        raise SchemaError("invalid codec", feature=feature, got=str(error)) from error
    return filters, compressor, None


def _is_of_pages(config: object) -> bool:
    """Whether a codec encodes whole pages, in its own page kind, rather than frames."""
    name = config.get("id") if isinstance(config, Mapping) else None
    return isinstance(name, str) and name in CODEC_KINDS


def _check_removed(config: object) -> None:
    """Raise `SchemaError` for a format in indexes of earlier code."""
    image = config if isinstance(config, Mapping) and config.get("id") == IMAGE else {}
    if str(image.get("format")).startswith("raw"):  # little-endian or big-endian
        raise SchemaError(
            "arrays inside HDF5 and Zarr files are no longer read in place",
            expected="a dataset converted from the original: `seqrecord write --src`",
            got=f"an index of such files: format {image['format']}",
        )


def _check_config(config: object) -> tuple[str, dict[str, Any]]:
    """Id and parameters of a configuration; raises `ValueError` if anything is unknown."""
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise ValueError(f"a codec is an object with an id, not {repr_of(config, 100)}")
    name = config["id"]
    if name not in _PARAMETERS:
        expected = ", ".join(sorted(_PARAMETERS))
        raise ValueError(f"unknown id {name[:50]!r}; expected any of {expected}")
    params = {key: value for key, value in config.items() if key != "id"}
    for key, value in params.items():
        values = _PARAMETERS[name].get(key)
        if values is None or not _is_allowed(value, values):
            raise ValueError(f"{name} does not take {str(key)[:50]!r} of {repr_of(value, 50)}")
    absent_keys = _REQUIRED.get(name, set()) - set(params)
    if absent_keys:
        raise ValueError(f"{name} needs {', '.join(sorted(absent_keys))}")
    return name, params


def _is_allowed(value: object, values: Collection[object]) -> bool:
    # 1, True and 1.0 are equal, but only a value of the right type is allowed.
    if isinstance(value, bool) or isinstance(next(iter(values)), bool):
        return isinstance(value, bool) and isinstance(next(iter(values)), bool)
    return (value is None or isinstance(value, (int, str))) and value in values


def _as_unsigned(array: npt.NDArray[Any]) -> UIntArray:
    """View of a C-contiguous array as little-endian unsigned integers of the same bits.

    A complex number becomes two integers, along a new last axis.
    """
    size = _unsigned_size(array.dtype)
    numbers: UIntArray = array.reshape(-1).view(f"<u{size}")
    return numbers.reshape(_unsigned_shape(array.dtype, array.shape))


def _unsigned_size(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _unsigned_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 2) if dtype.kind == "c" else shape
