"""The filters' bytes as defined in docs/codecs.md, and their exact inverses."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqrecord.store.codecs.base import MAX_BUFFER_BYTES
from seqrecord.store.codecs.delta import Delta, unbuffered
from seqrecord.store.codecs.integers import Bias, SubtractGreen

UINTS = ("<u1", "<u2", "<u4", "<u8")


def u1(*rows: list[int]) -> npt.NDArray[np.uint8]:
    return np.array(rows, np.uint8)


def decoded(codec: Any, frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    out = np.empty(frame.shape, frame.dtype)
    with unbuffered():
        codec.decode(frame[np.newaxis], out[np.newaxis])
    return out


def decoded_in_place(codec: Any, frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    frames = frame[np.newaxis]
    with unbuffered():
        codec.decode(frames, frames)
    return frame


@pytest.mark.parametrize(
    ("codec", "array", "encoded"),
    [
        (Delta(axis=1), u1([1, 3, 2], [250, 4, 4]), "01 02 ff fa 0a 00"),
        (Delta(axis=-1), u1([1, 3, 2], [250, 4, 4]), "01 02 ff fa 0a 00"),
        (Delta(axis=0), u1([1, 3, 2], [250, 4, 4]), "01 03 02 f9 01 02"),
        # 0x00010000 - 0x00000001 = 0x0000ffff: the borrow crosses from one element to the next
        (Delta(axis=0, width=4), np.array([[1, 0], [0, 1]], "<u2"), "0100 0000 ffff 0000"),
        (Delta(axis=0), np.array([[1, 0], [0, 1]], "<u2"), "0100 0000 ffff 0100"),
        (Delta(axis=0), np.array([1, 0], "<u8"), "0100000000000000 ffffffffffffffff"),
        (Delta(axis=None), u1([1, 3, 2], [250, 4, 4]), "01 02 ff f8 0a 00"),
        (Delta(axis=None, width=2), u1([1, 0, 2, 0], [4, 1, 0, 2]), "0100 0100 0201 fc00"),
        (Delta(axis=1, restart=2), u1([1, 3, 2], [250, 4, 4]), "01 02 02 fa 0a 04"),
        (Delta(axis=0, restart=2), u1([1], [3], [2], [7], [8]), "01 02 02 05 08"),
        (Delta(axis=None, restart=4), u1([1, 3, 2], [250, 4, 4]), "01 02 ff f8 04 00"),
        (Bias(), u1([0, 255]), "00 ff"),
        (Bias(), np.array([0, 0xFFFF, 0xFF80], "<u2"), "8000 7f00 0000"),
        (Bias(), np.array([1, 0xFFFFFFFF], "<u4"), "81808000 7f808000"),
        (Bias(), np.array([0], "<u8"), "80808080 80808000"),
        (SubtractGreen(), u1([10, 20, 5], [255, 0, 7]), "f6 14 f1 ff 00 07"),
        (SubtractGreen(), np.array([[1, 2, 3]], "<u2"), "ffff 0200 0100"),
    ],
)
def test_bytes(codec: Any, array: npt.NDArray[Any], encoded: str) -> None:
    assert codec.encode(array).tobytes() == bytes.fromhex(encoded)
    assert decoded(codec, codec.encode(array)).tobytes() == array.tobytes()


@given(
    array=hnp.arrays(st.sampled_from(UINTS), hnp.array_shapes(min_dims=1, max_dims=4, max_side=40)),
    axis=st.integers(-4, 3),
    restart=st.integers(2, 20),
)
def test_any_shape_is_inverted(array: npt.NDArray[Any], axis: int, restart: int) -> None:
    axis %= array.ndim
    deltas = (Delta(axis), Delta(axis, restart=restart), Delta(None), Delta(None, restart=restart))
    for codec in (*deltas, Bias()):
        encoded = codec.encode(array)
        assert encoded.shape == array.shape
        assert encoded.dtype == array.dtype
        np.testing.assert_array_equal(decoded(codec, encoded), array)
        np.testing.assert_array_equal(decoded_in_place(codec, encoded), array)


# Slabs long enough for sums in blocks, with different remainders.
@pytest.mark.parametrize("length", [*range(15, 40, 3), 97, 719])
@pytest.mark.parametrize("dtype", UINTS)
def test_filters_of_long_slabs_are_inverted(length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    array = rng.integers(0, 255, (2, length, 300)).astype(dtype)
    codecs = (Delta(1), Delta(-2, width=8), Delta(1, restart=16), Delta(1, None, 7))
    for codec in codecs:
        if codec.width is None or (300 * array.dtype.itemsize) % codec.width == 0:
            encoded = codec.encode(array)
            np.testing.assert_array_equal(decoded(codec, encoded), array)
            np.testing.assert_array_equal(decoded_in_place(codec, encoded), array)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (2, 0, 4)])
def test_sums_of_empty_and_tiny_arrays(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 7, "<u4")
    axes = [None, *range(len(shape))]
    for codec in [Delta(axis, restart=restart) for axis in axes for restart in (None, 2)]:
        np.testing.assert_array_equal(decoded(codec, codec.encode(array)), array)


def test_sums_into_another_array_keep_their_source() -> None:
    array = np.random.default_rng(0).integers(0, 99, (40, 64, 8)).astype("<u4")
    for codec in (Delta(None), Delta(0), Delta(0, restart=16), Delta(-2), Delta(1, restart=3)):
        encoded = codec.encode(array)
        before = encoded.copy()
        np.testing.assert_array_equal(decoded(codec, encoded), array)
        np.testing.assert_array_equal(encoded, before)
    size = np.getbufsize()  # NumPy's buffer size, which sums change temporarily
    decoded(Delta(0), np.ones((40, 300), "<u1"))
    assert np.getbufsize() == size


@pytest.mark.parametrize(
    ("codec", "shape"),
    [
        (Delta(None, width=8), (480, 640, 2)),
        (Delta(-3, width=8, restart=16), (480, 640, 2)),
        (Delta(-3), (480, 640, 2)),
        (Bias(), (480, 640, 2)),
    ],
)
def test_the_gil_is_released_while_a_frame_is_decoded(codec: Any, shape: tuple[int, ...]) -> None:
    source = np.zeros((1, *shape), "<u4")
    out = source if isinstance(codec, Bias) else np.zeros_like(source)
    ran, start = threading.Event(), threading.Lock()
    start.acquire()

    def other() -> None:
        with start:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no switch unless the decoder releases the GIL
    try:
        start.release()
        calls = 0
        while not ran.is_set() and calls < 2000:
            with unbuffered():
                codec.decode(source, out)
            calls += 1
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("dtype", UINTS)
def test_pixel_filters_are_inverted_over_several_bands(dtype: str) -> None:
    shape = (2 * MAX_BUFFER_BYTES // np.dtype(dtype).itemsize // 33 + 5, 11, 3)
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8).astype(dtype)
    for codec in (SubtractGreen(), Bias()):
        encoded = codec.encode(pixels)
        np.testing.assert_array_equal(decoded_in_place(codec, encoded), pixels)


def test_input_of_any_layout_is_not_changed() -> None:
    array = np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype("<u2")
    for view in (array[::2, ::-1], array.transpose(1, 0, 2), np.broadcast_to(array[0], (4, 20, 3))):
        before = view.copy()
        for codec in (Delta(0), Delta(1), Bias(), SubtractGreen()):
            encoded = codec.encode(view)
            np.testing.assert_array_equal(view, before)
            np.testing.assert_array_equal(decoded(codec, encoded), before)


def test_unsupported_shapes_are_refused() -> None:
    several: list[tuple[Any, tuple[int, ...], int]] = [
        (Delta(axis=2), (3, 4), 1),
        (Delta(axis=-3), (3, 4), 1),
        (Delta(axis=0), (), 4),
        (Delta(axis=0, width=2), (3, 4), 4),
        (Delta(axis=0, width=8), (4, 3), 2),
        (Delta(axis=None, width=8), (4, 3), 2),
        (Delta(axis=None, width=8), (), 2),
        (SubtractGreen(), (3, 4), 1),
        (SubtractGreen(), (), 1),
    ]
    for codec, shape, itemsize in several:
        with pytest.raises(ValueError, match=r"axis|bytes"):
            codec.check(shape, itemsize)
