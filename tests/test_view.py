"""Contact sheets: what is shown how, and that the pixels say what the numbers are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import ClipError, Dataset, contact_sheet, view
from seqrecord.drawing.colours import NEUTRAL, flow_colours, label_colours, ramp_colours
from seqrecord.drawing.panels import draw_panel, draw_plots, kind_of
from seqrecord.drawing.theme import BACKGROUND, number_text, range_text
from tests.datasets import write_small

Array = npt.NDArray[Any]


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "kind"),
    [
        ("image_left", "u1", (480, 640, 3), "picture"),
        ("photo", "u1", (None, None, 4), "picture"),
        ("grey", "u1", (480, 640), "picture"),
        ("depth_left", "f4", (480, 640), "depth"),
        ("depth_mm", "u2", (480, 640), "depth"),
        ("flow", "f4", (480, 640, 2), "flow"),
        ("motion", "f2", (480, 640, 2), "flow"),
        ("mask", "u1", (480, 640), "labels"),
        ("seg_left", "i4", (480, 640), "labels"),
        ("valid", "?", (480, 640), "labels"),
        ("mask_soft", "f4", (480, 640), "ramp"),
        ("thermal", "u2", (480, 640), "ramp"),
        ("height", "f8", (480, 640), "ramp"),
        ("pose_left", "f8", (7,), "plot"),
        ("reward", "f4", (), "plot"),
        ("imu_acc", "f8", (10, 3), "text"),
        ("note", "u1", (None,), "text"),
        ("wave", "c8", (5,), "text"),
        ("normals", "f4", (480, 640, 3), "text"),
    ],
)
def test_kind_of(name: str, dtype: str, shape: tuple[int | None, ...], kind: str) -> None:
    assert kind_of(name, np.dtype(dtype), shape) == kind


def test_ramp() -> None:
    values = np.array([0, 0.5, 1, -7, 1e30, np.nan, np.inf], np.float32)
    colours = ramp_colours(values).tolist()
    assert colours[0] == colours[3] == [0, 0, 4]
    assert colours[2] == colours[4] == [252, 255, 164]
    np.testing.assert_allclose(colours[1], [188, 55, 84], atol=2)  # matplotlib's inferno(0.5)
    assert colours[5] == colours[6] == list(NEUTRAL)
    # Ever brighter: the ramp is perceptual.
    luminance = ramp_colours(np.linspace(0, 1, 50)) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) > 0).all()


def test_flow_wheel() -> None:
    # What flow_vis and the Middlebury tool paint for these directions, x right and y down.
    flow = np.array([[1, 0], [-1, 0], [0, 0], [0, 1], [0, -1], [2, 0], [np.nan, 0], [1e10, 0]])
    colours = flow_colours(flow, 1.0).astype(int).tolist()
    assert colours[0] == [255, 0, 0]
    np.testing.assert_allclose(colours[1], [0, 209, 255], atol=2)
    assert colours[2] == [255, 255, 255]
    np.testing.assert_allclose(colours[3], [255, 230, 0], atol=2)
    np.testing.assert_allclose(colours[4], [88, 0, 255], atol=2)
    np.testing.assert_allclose(colours[5], np.array(colours[0]) * 0.75, atol=1)
    assert colours[6] == colours[7] == list(NEUTRAL)


def test_palette() -> None:
    colours = label_colours(np.arange(256)).astype(int)
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    assert colours[0].max() < 60 < colours[1:].max(axis=1).min()
    near = np.abs(np.diff(colours[1:40], axis=0)).sum(axis=1)
    assert near.min() > 100  # neighbours are told apart
    wrapped = label_colours(np.array([256, -1, 2**40], np.int64))
    assert wrapped.shape == (3, 3)
    assert wrapped[0].tolist() == colours[1].tolist()
    assert label_colours(np.array([False, True])).tolist() == colours[:2].tolist()


def _middle(image: Image.Image | None) -> tuple[int, ...]:
    assert image is not None
    pixel = image.getpixel((image.width // 2, image.height // 2))
    assert isinstance(pixel, tuple)
    return pixel


def test_depth_has_one_scale_for_all_frames_and_survives_the_sky() -> None:
    near, far = np.full((48, 64), 2, np.float32), np.full((48, 64), 30, np.float32)
    far[:20] = 1e4
    far[20:24] = np.nan
    far[0, 0] = np.inf
    panel = draw_panel("depth", [near, None, far], 64, 92)
    first, missing, last = panel.cells
    assert missing is None
    assert first is not None
    assert last is not None
    assert first.size == last.size == (64, 48)
    assert _middle(first) == (252, 255, 164)
    assert last.getpixel((32, 5)) == (0, 0, 4)  # the sky, as far as can be
    assert last.getpixel((32, 22)) == NEUTRAL
    middle = last.getpixel((32, 40))
    assert isinstance(middle, tuple)
    assert (
        40 < sum(middle) < 300
    )  # 30 m is neither lost beside the sky nor as bright as what is near
    assert panel.legend is not None
    assert panel.legend.size == (92, 48)


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, np.inf, 5.0, 3e38])
def test_depth_without_anything_to_scale(value: float) -> None:
    cell = draw_panel("depth", [np.full((16, 16), value, np.float32)], 64, 92).cells[0]
    assert cell is not None
    assert cell.size == (64, 64)


@pytest.mark.parametrize("kind", ["flow", "ramp", "labels", "picture"])
def test_odd_values_draw_without_a_warning(kind: Any) -> None:
    frames: dict[str, Array] = {
        "flow": np.full((16, 16, 2), np.nan, np.float16),
        "ramp": np.full((16, 16), np.inf),
        "labels": np.full((16, 16), -(2**62), np.int64),
        "picture": np.full((16, 16, 4), 128, np.uint8),
    }
    panel = draw_panel(kind, [frames[kind]], 64, 92)
    assert panel.cells[0] is not None


def test_labels_are_never_mixed() -> None:
    mask = np.zeros((300, 400), np.uint8)
    mask[::2] = 100
    [cell] = draw_panel("labels", [mask], 64, 92).cells
    assert cell is not None
    seen = {tuple(pixel) for pixel in np.asarray(cell).reshape(-1, 3).tolist()}
    assert seen <= {tuple(c) for c in label_colours(np.array([0, 100])).tolist()}


def test_pictures_keep_their_colour_and_shape() -> None:
    wide = np.zeros((20, 80, 3), np.uint8) + np.array([10, 200, 30], np.uint8)
    tall = np.zeros((80, 20, 3), np.uint8) + np.array([200, 10, 30], np.uint8)
    one, two = draw_panel("picture", [wide, tall], 100, 92).cells
    assert _middle(one) == (10, 200, 30)
    assert _middle(two) == (200, 10, 30)
    assert one is not None
    assert two is not None
    assert one.size == two.size == (100, 25)
    assert two.getpixel((2, 12)) == BACKGROUND  # whole, so with room at its sides
    rgba = np.zeros((16, 16, 4), np.uint8)
    assert _middle(draw_panel("picture", [rgba], 64, 92).cells[0]) == BACKGROUND


def test_plots() -> None:
    rising = [np.array([i, 5.0]) for i in range(10)]
    image = np.asarray(draw_plots(rising, (400, 84))).astype(int)
    # The first component rises from the lower left to the upper right; the second is level.
    red = np.abs(image - label_colours(np.array(1)).astype(int)).sum(axis=-1) < 30
    y, x = np.nonzero(red)
    assert y[x.argmin()] > 70
    assert y[x.argmax()] < 30
    assert x.max() < 200
    green = np.abs(image - label_colours(np.array(2)).astype(int)).sum(axis=-1) < 30
    assert np.ptp(np.nonzero(green)[0]) < 6
    with_gap = draw_plots([rising[0], None, np.array([np.nan, np.inf]), rising[3]], (400, 84))
    assert with_gap.size == (400, 84)
    assert draw_plots([np.zeros(40)] * 3, (400, 84)).size == (400, 84)


def test_numbers() -> None:
    assert [number_text(v) for v in (0.01234, 12.345, 1234.5, 1.5e6)] == [
        "0.0123",
        "12.3",
        "1234",
        "1.5e+06",
    ]
    assert range_text(-27.213, -27.034) == "-27.21 to -27.03"
    assert range_text(-0.0001, 4) == "0.0 to 4.0"
    assert range_text(5, 5) == "5"


def test_contact_sheet_rows_and_columns() -> None:
    images = [np.full((48, 64, 3), 40 * i, np.uint8) for i in range(5)]
    flow: list[Array | None] = [np.ones((48, 64, 2), np.float32)] * 4
    frames: dict[str, Any] = {
        "image": images,
        "flow": [*flow, None],
        "pose": [np.zeros(7)] * 5,
        "imu": [np.zeros((10, 3))] * 5,
        "gone": [None] * 5,
    }
    one = contact_sheet({"image": images}, title="a/b")
    sheet = contact_sheet(frames, title="a/b", subtitle="frames")
    assert sheet.width == one.width <= 2400
    assert sheet.height > one.height + 180
    # The columns of the first row, each in its colour.
    row = np.asarray(sheet)[70 + 90]
    widths = [int((row == 40 * i).all(axis=-1).sum()) for i in range(5)]
    assert widths == [240] * 5


def test_a_sheet_is_no_wider_than_asked() -> None:
    frames = {"image": list(np.zeros((24, 24, 24, 3), np.uint8))}
    assert 1900 < contact_sheet(frames, max_width=2000).width <= 2000
    assert contact_sheet({"image": [np.zeros((24, 24, 3), np.uint8)]}).width < 800


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Dataset]:
    write_small(tmp_path / "records")
    with seqrecord.open(tmp_path / "records") as opened:
        yield opened


def test_view_writes_a_picture(dataset: Dataset, tmp_path: Path) -> None:
    path = view(dataset, tmp_path / "clip.png")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        full = image.size
    # Of the eleven frames, at most so many columns.
    view(dataset, path, max_columns=4)
    with Image.open(path) as image:
        assert image.width < full[0]
    view(dataset, path, key="beta/Hard/P000")  # one frame; flow and mask are missing
    view(dataset.select(["step"]), path, start=3, clip_len=4, dilation=2)
    with Image.open(path) as image:
        assert image.height < full[1] / 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "nope"}, "no such episode"),
        ({"start": 11}, "outside its episode"),
        ({"start": -1}, "outside its episode"),
        ({"clip_len": 12}, "longer than what is left"),
        ({"clip_len": 4, "dilation": 4}, "longer than what is left"),
        ({"clip_len": 0}, "length is out of range"),
        ({"dilation": 0}, "dilation is out of range"),
    ],
)
def test_clips_that_are_not_there(
    dataset: Dataset, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClipError, match=message):
        view(dataset, tmp_path / "clip.png", **arguments)
    assert not (tmp_path / "clip.png").exists()
