"""Contact sheets: axes, images, scales and texts of figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pytest
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from PIL import Image

import seqrecord
from seqrecord import ClipError, Dataset, NotFoundError, view
from seqrecord.errors import SchemaError
from tests.kit.datasets import columns, write_dataset
from tests.kit.processes import run_code

Array = npt.NDArray[Any]

NEUTRAL = [72, 76, 84]


def axes_of(figure: Figure, label: str) -> Axes:
    [axes] = [axes for axes in figure.axes if axes.get_label() == label]
    return axes


def labels(figure: Figure) -> list[Any]:
    return [axes.get_label() for axes in figure.axes]


def texts(figure: Figure) -> list[str]:
    found: list[Any] = figure.findobj(Text)
    return [text.get_text() for text in found if text.get_text()]


def shown(image: AxesImage) -> Array:
    """The pixels that the image has, uint8 [H, W, 3 or 4]."""
    array = image.get_array()
    assert array is not None
    if array.ndim == 3:
        return np.asarray(array)
    return np.asarray(image.to_rgba(array, bytes=True))[..., :3]


def pixels(figure: Figure) -> Array:
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def image_of(name: str, frame: Array) -> Array:
    """A single frame's pixels."""
    [image] = axes_of(view({name: [frame]}), name).images
    return shown(image)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "legend"),
    [
        ("image_left", "u1", (48, 64, 3), ""),
        ("photo", "u1", (48, 64, 4), ""),
        ("grey", "u1", (48, 64), ""),
        ("depth_left", "f4", (48, 64), "scale"),
        ("depth_mm", "u2", (48, 64), "scale"),
        ("flow", "f4", (48, 64, 2), "wheel"),
        ("motion", "f2", (48, 64, 2), "wheel"),
        ("mask", "u1", (48, 64), "legend"),
        ("seg_left", "i4", (48, 64), "legend"),
        ("valid", "?", (48, 64), "legend"),
        ("mask_soft", "f4", (48, 64), "scale"),
        ("thermal", "u2", (48, 64), "scale"),
        ("height", "f8", (48, 64), "scale"),
        # Curves, a dozen or more on shared axes, and features shown by one line of text.
        ("pose_left", "f8", (7,), [f"pose_left[{i}]" for i in range(7)]),
        ("reward", "f4", (), ["reward"]),
        ("state", "f4", (40,), ["state"]),
        ("transform", "f8", (3, 4), [f"transform[{i}]" for i in range(12)]),
        ("keypoints", "f4", (10, 3), ["keypoints"]),
        ("points", "f4", (100, 3), []),
        ("wave", "c8", (5,), []),
        ("normals", "f4", (48, 64, 3), []),
        ("tiny", "u1", (2, 2, 3), []),
    ],
)
def test_axes_of_features(name: str, dtype: str, shape: tuple[int, ...], legend: Any) -> None:
    figure = view({name: np.ones((3, *shape), dtype)})
    if isinstance(legend, str):
        assert len(axes_of(figure, name).images) == 3
        assert labels(figure) == [name, *([legend] if legend else [])]
    else:
        assert labels(figure) == legend
        assert sum(len(axes.lines) for axes in figure.axes) == (np.prod(shape) if legend else 0)


def test_depth_has_one_scale_for_all_frames_and_survives_the_sky() -> None:
    near, far = np.full((48, 64), 2, np.float32), np.full((48, 64), 30, np.float32)
    far[:20] = 1e4
    far[20:24] = np.nan
    far[0, 0] = np.inf
    figure = view({"depth": [near, None, far]})
    first, last = (shown(image) for image in axes_of(figure, "depth").images)
    np.testing.assert_allclose(first[24, 32], [252, 255, 164], atol=1)  # near is bright
    assert last[5, 32].max() < 10  # the sky, as far as can be
    assert last[22, 32].tolist() == last[0, 0].tolist() == NEUTRAL
    assert 40 < last[40, 32].sum() < 300  # 30 m is neither lost beside the sky nor near
    assert {"missing", "2", "14.1", "100"} <= set(texts(figure))  # a clip has no units


def test_odd_values_draw_without_a_warning() -> None:
    """Several in a figure. Names are no formulas; characters missing in the font are squares."""
    depths: dict[str, Any] = {
        f"depth_{n}": [np.full((16, 16), depth, "f4")]
        for n, depth in enumerate((np.nan, 0, -1, np.inf, 5, 3e38))
    }
    others = {
        "flow": np.full((16, 16, 2), np.nan, np.float16),
        "height": np.full((16, 16), np.inf),
        "height_b": np.full((16, 16), 1e300),
        "mask": np.full((16, 16), -(2**62), np.int64),
        "image": np.full((16, 16, 4), 128, np.uint8),
        "image_b": np.full((16, 16), 128, np.uint8),
        "image_c": np.full((8, 4000, 3), 128, np.uint8),
        "reward": np.array(np.nan),
        "reward_b": np.array(True),
    }
    pixels(view(depths))
    figure = view(
        {name: [frame] for name, frame in others.items()}
        | {
            "image" * 40: np.zeros((1, 16, 16, 3), np.uint8),
            "episode": "$\\frac$ 日本 \x1b[2J" * 20,
        }
    )
    pixels(figure)
    cut = [text for text in texts(figure) if text.endswith("…")]
    assert [text[:10] for text in cut] == ["$\\frac$ □□", "imageimage"]
    assert cut[0].startswith("$\\frac$ □□ □[2J")


def test_colours_of_numbers_and_of_flow() -> None:
    """Numbers: between the first and last percent, in matplotlib's perceptual inferno."""
    colours = image_of("height", np.linspace(0, 100, 64 * 64).reshape(64, 64))
    for value, place in [(0.0, (0, 0)), (0.5, (32, 0)), (1.0, (63, 63))]:
        expected = np.array(colormaps["inferno"](value)[:3]) * 255
        np.testing.assert_allclose(colours[place], expected, atol=4)
    # The colours of flow_vis and the Middlebury tool for these directions, x right and y down.
    directions = np.array([[1, 0], [-1, 0], [0, 0], [0, 1], [0, -1], [np.nan, 0], [1e10, 0]])
    flow = np.repeat(directions, 8, axis=0)[None].repeat(8, axis=0)
    colours = image_of("flow", flow)[0, ::8].astype(int)
    wheel = [[255, 0, 0], [0, 209, 255], [255, 255, 255], [255, 230, 0], [88, 0, 255]]
    np.testing.assert_allclose(colours[:5], wheel, atol=2)
    assert colours[5].tolist() == colours[6].tolist() == NEUTRAL
    longer = np.ones((40, 40, 2)) * [1, 0]
    longer[0, 0] = [3, 0]  # beyond the 99th percentile
    np.testing.assert_allclose(image_of("flow", longer)[0, 0], [191, 0, 0], atol=1)
    assert "rim 1.25" in texts(view({"flow": [longer]}))


def test_labels_have_colours_of_their_own_that_are_never_mixed() -> None:
    colours = image_of("seg", np.arange(256).reshape(16, 16)).reshape(-1, 3).astype(int)
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    assert colours[0].max() < 60 < colours[1:].max(axis=1).min()
    assert np.abs(np.diff(colours[1:40], axis=0)).sum(axis=1).min() > 100  # neighbours differ
    assert image_of("seg", np.full((16, 16), 256))[0, 0].tolist() == colours[1].tolist()
    assert image_of("valid", np.eye(16, dtype=bool))[0, :2].tolist() == colours[[1, 0]].tolist()
    mask = np.zeros((300, 400), np.uint8)
    mask[::2] = 100
    figure = view({"mask": [mask]})
    figure.set_dpi(50)  # far fewer pixels than the mask has
    [image] = axes_of(figure, "mask").images
    (x0, y0), (x1, y1) = image.get_window_extent().get_points().astype(int)
    drawn = pixels(figure)[::-1][y0 + 2 : y1 - 2, x0 + 2 : x1 - 2]
    seen = {tuple(pixel) for pixel in drawn.reshape(-1, 3).tolist()}
    assert seen <= {tuple(pixel) for pixel in shown(image).reshape(-1, 3).tolist()}
    # A legend names the most common ones.
    seg = np.zeros((1, 64, 64), np.uint8)
    seg[:, :4] = np.arange(256).reshape(4, 64)
    found = texts(view({"seg": seg}))
    [more], named = [t for t in found if t.startswith("+")], [t for t in found if t.isdigit()]
    assert "0" in named
    assert int(more) + len(named) == 256 + 1  # the digits include the first frame's number


def test_pictures_keep_their_colour_and_shape() -> None:
    wide = np.zeros((20, 80, 3), np.uint8) + np.array([10, 200, 30], np.uint8)
    tall = np.zeros((80, 20, 3), np.uint8) + np.array([200, 10, 30], np.uint8)
    figure = view({"image": [wide, tall]})
    for image, picture in zip(axes_of(figure, "image").images, (wide, tall), strict=True):
        ratio = picture.shape[1] / picture.shape[0]
        left, right, bottom, top = image.get_extent()
        assert (right - left) / (bottom - top) == pytest.approx(ratio)
        box = image.get_window_extent()
        assert box.width / box.height == pytest.approx(ratio, rel=0.02)
        middle = pixels(figure)[::-1][int(box.y0 + box.y1) // 2, int(box.x0 + box.x1) // 2]
        assert middle.tolist() == picture[0, 0].tolist()


def test_curves_have_their_own_scales_below_their_frames() -> None:
    values = np.array([[i, 5.0] for i in range(10)])
    values[4, 0] = np.nan
    figure = view({"pose": values}, start=100)
    rising, level = axes_of(figure, "pose[0]"), axes_of(figure, "pose[1]")
    [line] = rising.lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(100, 110))
    np.testing.assert_array_equal(line.get_ydata(), values[:, 0])
    assert rising.get_title("left") == "[0]"
    assert rising.get_title("right") == "0.0 to 9.0"
    assert level.get_title("right") == "5"
    assert rising.get_ylim()[0] < 0 < 9 < rising.get_ylim()[1]
    figure = view({"image": np.zeros((5, 16, 16, 3), np.uint8), "reward": np.arange(5.0)})
    axes = axes_of(figure, "reward")
    for number, image in enumerate(axes_of(figure, "image").images):
        box = image.get_window_extent()
        x, _ = axes.transData.transform((number, 0))
        assert x == pytest.approx((box.x0 + box.x1) / 2, abs=1)
    for numbers, text in (
        ([-27.213, -27.034], "-27.21 to -27.03"),
        ([-0.0001, 4], "0.0 to 4.0"),
        ([0.01234, 0.01234], "0.0123"),
        ([1234.5, 1234.5], "1234"),
        ([1.5e6, 1.5e6], "1.5e+06"),
        ([np.nan, np.inf], "not finite"),
    ):
        assert axes_of(view({"x": np.array(numbers)}), "x").get_title("right") == text


def test_the_users_settings_make_no_difference() -> None:
    clip = {"depth": np.ones((2, 16, 16))}
    expected = pixels(view(clip))
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.facecolor": "white"}):
        before = dict(mpl.rcParams)
        figure = view(clip)
        assert dict(mpl.rcParams) == before
    assert to_rgb(figure.get_facecolor()) != (1, 1, 1)
    np.testing.assert_array_equal(pixels(figure), expected)


# Clips


@pytest.fixture
def dataset(small: Path) -> Iterator[Dataset]:
    with seqrecord.open(small) as opened:
        yield opened


def test_a_dataset_s_first_clip(dataset: Dataset) -> None:
    figure = view(dataset)
    assert {"alpha/Easy/P000", "frames 0 to 10 of 11", "frame", "0", "10"} <= set(texts(figure))
    # In schema order; a line of text for features of variable length.
    rows = [str(label).split("[")[0] for label in labels(figure)]
    names = [name for name in dict.fromkeys(rows) if name in dataset.features]
    assert names == [name for name in dataset.features if name != "note"]
    assert {"note", "uint8", "32 x 40 x 3", "scalar", "float64"} <= set(texts(figure))
    assert len(axes_of(figure, "image_left").images) == 11
    assert len(axes_of(figure, "flow").images) == 10
    assert texts(figure).count("missing") == 2  # flow and mask of the last frame
    frame = dataset.episodes["alpha/Easy/P000"][3]["image_left"]
    np.testing.assert_array_equal(shown(axes_of(figure, "image_left").images[3]), frame)
    # Columns are spread over the clip, and curves have all frames.
    figure = view(dataset, max_columns=4, features=["image_left", "step"])
    assert len(axes_of(figure, "image_left").images) == 4
    assert [text for text in texts(figure) if text.isdigit()] == ["0", "3", "7", "10"]
    [line] = axes_of(figure, "step").lines
    assert len(np.asarray(line.get_xdata())) == 11
    narrow = view({"image": np.zeros((40, 8, 8, 3), np.uint8)}, max_columns=40)
    assert len(axes_of(narrow, "image").images) == 40
    pixels(view(dataset, features=["note"], max_columns=2))  # both are of one length, others not


def test_all_ways_to_name_a_clip(dataset: Dataset) -> None:
    key = "alpha/Easy/P001"
    clip: dict[str, Any] = {"clip_len": 2, "dilation": 2, "features": ["step", "image_left"]}
    expected = pixels(view(dataset, key, start=1, **clip))
    for figure in (
        view(dataset.url, key, start=1, **clip),
        view(Path(dataset.url), key, start=1, **clip),
        view(dataset.episodes[key], start=1, **clip),
    ):
        np.testing.assert_array_equal(pixels(figure), expected)
    frames = dataset.episodes[key].read([1, 3], features=["step", "image_left"])
    figure = view({**frames, "episode": key, "start": 1}, dilation=2)
    assert labels(figure) == ["step", "image_left"]
    assert {key, "frames 1 to 3, 2 apart", "1", "3"} <= set(texts(figure))
    # A clip and a row of a batch.
    options: dict[str, Any] = {"clip_len": 3, "features": ["image_left", "pose"], "shuffle": False}
    clip = next(iter(seqrecord.SeqRecordPipe(dataset.url, **options)))
    figure = view(clip)
    assert {clip["episode"], "frames 0 to 2"} <= set(texts(figure))
    first = axes_of(figure, "image_left").images[0]
    np.testing.assert_array_equal(shown(first), clip["image_left"][0].numpy())
    batch = next(iter(seqrecord.SeqRecordPipe(dataset.url, batch_size=2, **options)))
    with pytest.raises(ClipError, match=r"a batch requires row=.*row=0 to row=1"):
        view(batch)
    one = {name: values[1] for name, values in batch.items()}
    np.testing.assert_array_equal(pixels(view(batch, row=1)), pixels(view(one)))


def test_columns_of_clips_are_no_frames() -> None:
    """Crops and the offset of cameras are in the title, not rows of three or four frames."""
    columns_of_clip = {"crop": np.arange(4), "camera_offset": np.zeros(3)}
    figure = view({"image": np.zeros((2, 8, 8, 3), np.uint8), **columns_of_clip})
    assert labels(figure) == ["image"]
    [title] = [text for text in texts(figure) if "camera_offset" in text]
    assert "crop: [0, 1, 2, 3], camera_offset: [0.0, 0.0, 0.0]" in title


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, units, depth in millimetres, and an IMU whose number of samples varies."""
    path = tmp_path_factory.mktemp("view") / "spoken"
    features: dict[str, Any] = {
        "range": {"kind": "depth", "unit": "mm"},
        "state": {"unit": "rad"},
        "imu": {"shape": (None, 3)},
    }
    frames = columns(
        range=np.full((4, 16, 16), 1500, np.uint16),
        state=np.arange(4)[:, None],
        imu=[np.arange(3.0 * n).reshape(-1, 3) for n in (1, 2, 3, 4)],
        task=["pick\nup"] * 2 + ["place"] * 2,
        raw=map(bytes, range(4)),
    )
    write_dataset(path, {"a": frames}, metadata={"a": {"robot": "arm"}}, features=features)
    return path


def test_texts_units_and_samples_between_frames(spoken: Path) -> None:
    figure = view(spoken)
    found = texts(figure)
    assert [found.count(t) for t in ("pick up", "place", "0 bytes")] == [1, 1, 1]
    assert {"1500 mm", "0.0 to 3.0 rad"} <= set(found)
    assert axes_of(figure, "range").images  # by its kind, whatever its name is
    [line] = axes_of(figure, "imu[1]").lines
    every = [0, 1, 1.5, 2, 2 + 1 / 3, 2 + 2 / 3, 3, 3.25, 3.5, 3.75]
    np.testing.assert_allclose(np.asarray(line.get_xdata()), every)
    np.testing.assert_array_equal(np.asarray(line.get_ydata())[1:3], [1, 4])


@pytest.mark.parametrize("ragged", ["list", "pad", "nested"])
def test_figures_show_the_extra_columns_of_batches(spoken: Path, ragged: str) -> None:
    options: dict[str, Any] = {"clip_len": 2, "metadata": ["robot"], "ragged": ragged}
    loader = seqrecord.SeqRecordIterableDataset(spoken, batch_size=2, shuffle=False, **options)
    for figure in (
        view(next(iter(loader)), row=1),
        view(seqrecord.SeqRecordMapDataset(spoken, **options)[1]),
    ):
        assert {"frames 1 to 2, robot: arm", "pick up", "place"} <= set(texts(figure))
        assert "imu[2]" in labels(figure)


def test_clips_that_are_not_there(dataset: Dataset, tmp_path: Path) -> None:
    three, rows = {"x": np.zeros(3)}, {"x": np.zeros((2, 3))}
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str | None]] = [
        (dataset, {"episode": "nope"}, ClipError, "unknown episode"),
        (dataset, {"start": 11}, ClipError, "beyond its episode"),
        (dataset, {"start": -1}, ClipError, "beyond its episode"),
        (dataset, {"clip_len": 12}, ClipError, "beyond its episode"),
        (dataset, {"clip_len": 4, "dilation": 4}, ClipError, "beyond its episode"),
        (dataset, {"clip_len": 0}, ClipError, "length"),
        (dataset, {"dilation": 0}, ClipError, "dilation"),
        (dataset, {"max_columns": 0}, ClipError, "max_columns is too small"),
        (dataset, {"storage_options": {"a": 1}}, ClipError, "storage_options"),
        (dataset, {"features": ["nope"]}, SchemaError, "no such feature"),
        (dataset, {"row": 0}, ClipError, "row"),
        (dataset.episodes["beta/Hard/P000"], {"episode": "beta/Hard/P000"}, ClipError, "episode"),
        (tmp_path / "nothing", {}, NotFoundError, None),
        ({}, {}, ClipError, "has no features"),
        ({"episode": "a", "start": 3}, {}, ClipError, "has no features"),
        ({"x": []}, {}, ClipError, "length"),
        ({"x": 3.0}, {}, ClipError, "has no features"),
        (rows, {"row": 2}, ClipError, "no such row"),
        (rows, {"row": True}, ClipError, "no such row"),
        ({**three, "episode": "a"}, {"row": 0}, ClipError, "row"),
        ({"x": [[1], [1, 2]]}, {"episode": "a"}, ClipError, "episode"),
        (three, {"clip_len": 2}, ClipError, "clip_len"),
        (three, {"features": ["nope"]}, SchemaError, "no such feature"),
    ]
    for clip, arguments, error, word in wrong:
        with pytest.raises(error, match=word):
            view(clip, **arguments)


# Files and notebooks


def test_a_figure_is_written_and_shown(dataset: Dataset, tmp_path: Path) -> None:
    figure = view(dataset, "beta/Hard/P000", features=["step", "flow"])  # a frame without flow
    assert "frame 0 of 1" in texts(figure)
    figure.savefig(tmp_path / "clip.png")
    figure.savefig(tmp_path / "clip.svg")
    with Image.open(tmp_path / "clip.png") as image:
        assert (image.format, image.width) == ("PNG", pixels(figure).shape[1])
    # IPython asks any object for this.
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


_WITHOUT = """
import sys
sys.modules["matplotlib"] = None
import seqrecord
from seqrecord.cli import main
try:
    seqrecord.view("nothing")
except seqrecord.errors.MissingPackageError as error:
    assert isinstance(error, ImportError)
    assert "`view`: pip install matplotlib" in str(error), error
else:
    raise AssertionError
main(["view", "nothing"])
"""


def test_without_matplotlib() -> None:
    done = run_code(_WITHOUT, status=1)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("seqrecord: error: plots require matplotlib, the extra `view`")


def test_kinds_without_pixels_are_no_pictures(tmp_path: Path) -> None:
    """Whatever their shape: the kind decides, not the shape."""
    state, pose = np.zeros((40, 40, 3), np.uint8), np.zeros((16, 16))
    frames = columns(state=[state], pose=[pose], image=[state], plain=[state])
    kinds = {name: {"kind": name} for name in ("state", "pose", "image")}
    write_dataset(tmp_path / "r", {"a": frames}, features=kinds)
    with seqrecord.open(tmp_path / "r") as dataset:
        figure = view(dataset)
    assert [n for n in labels(figure) if axes_of(figure, n).images] == ["image", "plain"]
