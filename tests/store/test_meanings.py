"""Kinds and units of features: given, inferred, changed later, and obeyed by crops and flips."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import (
    ClipError,
    FeatureSpec,
    HorizontalFlip,
    RandomResizedCrop,
    Resize,
    Schema,
    SeqRecordPipe,
    SeqRecordWriter,
    edit,
)
from seqrecord.errors import ConflictError, FormatError, SchemaError
from seqrecord.store.feature_kinds import parse_unit, partner_of, same_unit, size_in
from seqrecord.store.schema import MAX_FRAME_BYTES, MAX_NAME_LENGTH
from tests.kit.bags import image, write_mcap
from tests.kit.command_line import fail, run
from tests.kit.datasets import check_rebuilt, write_dataset, write_episodes

COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
SIDE = 12


def mask() -> npt.NDArray[np.uint8]:
    """Three colours in a pattern that fits no resize factor."""
    found: npt.NDArray[np.uint8] = COLOURS[np.add.outer(np.arange(SIDE), np.arange(SIDE)) % 3]
    return found


def colours(pixels: Any) -> int:
    return len(np.unique(np.asarray(pixels).reshape(-1, 3), axis=0))


def tree(root: Path, **features: npt.NDArray[Any]) -> Path:
    """A tree of one episode of three frames, of images and arrays."""
    for name, value in features.items():
        folder = root / "episode" / name
        folder.mkdir(parents=True)
        for number in range(3):
            if value.dtype == np.uint8:
                Image.fromarray(value).save(folder / f"{number:06d}.png")
            else:
                np.save(folder / f"{number:06d}.npy", value)
    return root


def dataset(path: Path, declared: Any = None, **features: Any) -> Path:
    """A dataset of one episode of four equal frames."""
    write_dataset(path, {"e": [features for _ in range(4)]}, features=declared, codecs="raw")
    return path


def specs(path: Path) -> dict[str, tuple[str | None, str | None]]:
    return {name: (spec.kind, spec.unit) for name, spec in seqrecord.open(path).features.items()}


def batch_of(path: Path, *steps: Any, **options: Any) -> dict[str, Any]:
    return next(
        iter(SeqRecordPipe(path, clip_len=2, batch_size=1, clip_transform=steps, **options))
    )


# ---- units


def test_units() -> None:
    sizes = {"m": 1, "mm": 1e-3, "1/5000 m": 1 / 5000, "0.001 m": 1e-3, "cm": 0.01, "1e-3 m": 1e-3}
    for unit, size in sizes.items():
        assert size_in(unit, "m") == pytest.approx(size)
        assert size_in(unit, "s") is None
    for unit in (
        *("m/s", "m/s^2", "rad/s", "px", "N/m", "1/s", "m^3", "deg/s", "kg*m^2", "Nm", "%", "uT"),
        "min",
    ):
        assert parse_unit(unit) is not None, unit
    for unit in ("meters", "MM", "", "m/", "m//s", "metre", "0 m", "1/0 m", "x", "m^", "1..2 m"):
        assert parse_unit(unit) is parse_unit("mmm") is None, unit
    for one, other, is_same in (
        *(("mm", "1/1000 m", True), ("m/s^2", "m/s/s", True), ("clicks", "clicks", True)),
        *(("m", "mm", False), ("rad", "m", False), ("clicks", "m", False)),
    ):
        assert same_unit(one, other) == is_same, (one, other)


# ---- given


def test_write_and_index(tmp_path: Path) -> None:
    depth = np.full((SIDE, SIDE), 2000, np.uint16)
    source = tree(tmp_path / "tree", classes=mask(), range=depth)
    given = ("--kind", "classes=segmentation", "--kind", "range=depth", "--unit", "range=mm")
    run("write", "--src", source, "--dst", tmp_path / "a", *given, "--quiet")
    run("index", source, "-o", tmp_path / "b", *given, "--quiet")
    kinds = {"classes": "segmentation", "range": "depth"}
    options: dict[str, Any] = {"kinds": kinds, "units": {"range": "mm"}, "workers": 1}
    seqrecord.convert(seqrecord.open_source(source), tmp_path / "c", **options)
    seqrecord.convert(seqrecord.open_source(tmp_path / "a"), tmp_path / "d", units={"range": "cm"})
    for path in (tmp_path / name for name in "abc"):
        found = specs(path)
        assert (found["classes"], found["range"]) == (("segmentation", None), ("depth", "mm"))
        assert colours(batch_of(path, Resize((5, 7)), features=["classes"])["classes"]) <= 3
    assert specs(tmp_path / "d")["range"] == ("depth", "cm")
    assert "--dst" in run("index", source, "--unit", "range=mm", code=2).stderr


def test_kinds_and_units_of_missing_features_are_refused(tmp_path: Path) -> None:
    """For `write`, `edit describe` and `convert`."""
    depth = np.ones((4, 5), np.float32)
    source = tree(tmp_path / "tree", rgb=mask(), depth=depth)
    records = dataset(tmp_path / "b", rgb=mask(), depth=depth, frame_number=np.int64(1))
    for option, value, *parts in (
        ("kind", "msk=mask", "msk", "rgb"),
        ("unit", "dpth=mm", "dpth", "depth"),
        ("unit", "depth=meters", "depth", "unknown unit", "m;"),
        ("unit", "depth=MM", "depth", "unknown unit", "mm;"),
        ("kind", "rgb=segmentatoin", "rgb", "unknown kind", "segmentation"),
        ("kind", "rgb=Image", "rgb", "unknown kind", "image;"),
        ("kind", "depth=flow", "depth", "does not fit", "float32"),
        ("kind", "frame_number=depth", "frame_number", "does not fit"),
        ("kind", "rgb=text", "rgb", "does not fit"),
        ("kind", "rgb=", "rgb", "unknown kind"),
    ):
        write = ("write", "--src", source, "--dst", tmp_path / "a", "--quiet")
        lines = [fail(*write, f"--{option}", value)]
        assert not (tmp_path / "a").exists()
        if value != "rgb=":
            lines.append(fail("edit", "describe", records, f"--{option}", value))
        assert all(part in line for line in lines for part in parts), lines
        name, _, text = value.partition("=")
        options: dict[str, Any] = {f"{option}s": {name: text}}
        with pytest.raises(SchemaError):
            seqrecord.convert(seqrecord.open_source(source), tmp_path / "c", **options)


def test_a_picture_has_no_depth_in_a_unit(tmp_path: Path) -> None:
    """Channels of 8 bits are a rendering of depth, or its bytes."""
    source, records = tree(tmp_path / "tree", rgb=mask()), dataset(tmp_path / "b", rgb=mask())
    given = ("--kind", "rgb=depth", "--unit", "rgb=mm")
    messages = [
        fail("write", "--src", source, "--dst", tmp_path / "a", "--quiet", *given),
        fail("edit", "describe", records, *given),
    ]
    run("edit", "describe", records, *given[:2])
    messages.append(fail("edit", "describe", records, *given[2:]))
    run("edit", "describe", records, "--unit", "rgb=px", code=1)
    features: dict[str, Any] = {"rgb": {"kind": "depth", "unit": "mm"}}
    with pytest.raises(SchemaError) as caught:
        write_dataset(tmp_path / "c", {"e": [{"rgb": mask()}]}, features=features)
    for message in (*messages, str(caught.value)):
        assert "no depth in a unit; store depth as uint16 or float32 [H, W]" in message
        assert "got: uint8" in message


def test_wrong_uses_of_edits(tmp_path: Path) -> None:
    records = dataset(tmp_path / "a", x=np.ones(3))
    for arguments in (["--kind", "x"], ["--unit", "=m"], ["--unit", "x=m", "--unit", "x=mm"], []):
        run("edit", "describe", records, *arguments, code=2)
    wrong: dict[str, Any] = {"is not a dict": "mm", "unknown unit": {"x": 1}, "nothing": None}
    for match, units in wrong.items():
        with pytest.raises(SchemaError, match=match):
            edit.describe_features(records, units=units)
    np.savez(tmp_path / "more.npz", e=np.ones((4, 2)))
    add = ("edit", "add", records, "y", "--files", tmp_path / "more.npz")
    assert "unknown kind" in fail(*add, "--kind", "pos")
    assert "unknown unit" in fail(*add, "--unit", "metres")
    run(*add, "--kind", "pose", "--unit", "m")
    assert specs(records) == {"x": (None, None), "y": ("pose", "m")}


def test_append_keeps_kinds_and_units(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others are refused; the error names the argument that keeps the dataset's."""
    source = tree(tmp_path / "tree", mask=mask()[..., 0], depth=np.ones((4, 5), np.uint16))
    write = ("write", "--src", source, "--dst", tmp_path / "a", "--quiet")
    of_mask = ("--kind", "mask=segmentation")
    run(*write, *of_mask, "--unit", "depth=mm")
    (source / "episode").rename(source / "other")
    assert "--kind mask=segmentation" in fail(*write, "--append")
    assert "another unit" in fail(*write, "--append", *of_mask, "--unit", "depth=m")
    options: dict[str, Any] = {"kinds": {"mask": "segmentation"}, "mode": "append", "workers": 1}
    caplog.clear()
    report = seqrecord.convert(seqrecord.open_source(source), tmp_path / "a", **options)
    [message] = caplog.messages
    assert "depth: unit unknown in the source, mm in the dataset" in message
    assert [note for note in report.inventory.notes if note in message]
    caplog.clear()
    (source / "other").rename(source / "third")
    options["units"] = {"depth": "1/1000 m"}
    seqrecord.convert(seqrecord.open_source(source), tmp_path / "a", **options)
    assert not caplog.records
    assert [*seqrecord.open(tmp_path / "a").episodes] == ["episode", "other", "third"]


# ---- changed


def test_edit_describe(tmp_path: Path) -> None:
    path = dataset(tmp_path / "a", seg=mask(), depth=np.full((3, 4), 2000, np.uint16))
    files = {file: file.stat().st_mtime_ns for file in (path / "records").iterdir()}
    result = run("edit", "describe", path, "--kind", "seg=mask", "--unit", "depth=mm", "--dry-run")
    assert "2 features would be changed" in result.stdout
    assert specs(path) == {"seg": (None, None), "depth": (None, None)}
    result = run("edit", "describe", path, "--kind", "seg=mask", "--unit", "depth=mm")
    assert "depth: kind unknown, unit mm" in result.stdout
    assert {file: file.stat().st_mtime_ns for file in (path / "records").iterdir()} == files
    check_rebuilt(path, specs, {"seg": ("mask", None), "depth": (None, "mm")})
    more = {"seg": mask(), "depth": np.zeros((3, 4), np.uint16)}
    write_dataset(path, {"f": [more]}, mode="append")
    changed = edit.describe_features(path, kinds={"depth": "depth"}, units={"depth": "1/1000 m"})
    assert [(spec.name, spec.kind, spec.unit) for spec in changed] == [
        ("depth", "depth", "1/1000 m")
    ]
    check_rebuilt(path, specs, {"seg": ("mask", None), "depth": ("depth", "1/1000 m")})
    edit.rewrite_files(path)
    edit.add_feature(path, "more", lambda e: np.zeros(len(e)))
    edit.drop_features(path, "seg")
    run("edit", "describe", path, "--unit", "depth=", "--kind", "more=reward")
    check_rebuilt(path, specs, {"depth": ("depth", None), "more": ("reward", None)})
    assert edit.describe_features(path, kinds={"depth": "depth"}) == []
    assert seqrecord.open(path).episodes["e"][0]["depth"][0, 0] == 2000


def test_writers_and_merges_of_edited_datasets(tmp_path: Path) -> None:
    """A resume recovers episodes of a writer opened before the edit."""
    frame = {"d": np.ones((3, 4), np.uint16)}
    path = dataset(tmp_path / "a", **frame)
    writer = SeqRecordWriter(path, mode="append")
    write_episodes(writer, {"f": [frame]})
    edit.describe_features(path, units={"d": "mm"})
    with pytest.raises(ConflictError):
        writer.close()
    with SeqRecordWriter(path, mode="resume") as resumed:
        assert resumed.completed_episodes == {"e", "f"}
        write_episodes(resumed, {"g": [frame]})
    check_rebuilt(path, specs, {"d": (None, "mm")})
    one = dataset(tmp_path / "b", {"d": {"unit": "mm"}}, **frame)
    edit.rename_episodes(one, {"e": "other"})
    edit.merge_datasets([one, path], tmp_path / "c")
    check_rebuilt(tmp_path / "c", specs, {"d": (None, "mm")})
    # Without an edit, record files with different units are refused.
    other = dataset(tmp_path / "m", {"d": {"unit": "m"}}, **frame)
    for file in (other / "records").iterdir():
        file.rename(one / "records" / file.name)
    for use in (seqrecord.reindex, lambda path: SeqRecordWriter(path, mode="resume")):
        with pytest.raises(FormatError, match="different schemas"):
            use(one)


def test_statistics_and_lags_follow_an_edit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics of other channels are removed; a timestamp needs lags."""
    path = dataset(tmp_path / "a", grid=np.ones((3, 4)), pose=np.ones(7))
    for kind, unit, names in ((None, "m", {"grid", "pose"}), ("depth", "m", {"pose"})):
        with caplog.at_level(logging.WARNING, "seqrecord"):
            edit.describe_features(path, kinds={"grid": kind}, units={"grid": unit})
        assert {*seqrecord.open(path).statistics} == names
    assert "grid removed" in caplog.text
    assert "seqrecord stats" in caplog.text
    path = tmp_path / "b"
    features = {"t": {"kind": "timestamp", "unit": "s"}}
    write_dataset(path, {"e": [{"t": float(i), "u": i * 10} for i in range(5)]}, features=features)
    line = fail("edit", "describe", path, "--kind", "u=timestamp", "--unit", "u=ms")
    command = line.partition("`seqrecord ")[2].partition("`")[0]
    run(*(word.strip("'") for word in command.split()))
    for kind in ("state", "timestamp"):
        run("edit", "describe", path, "--kind", f"t={kind}")
        check_rebuilt(path, specs, {"t": (kind, "s"), "u": ("timestamp", "ms")})


# ---- inferred


def test_folders_infer_kinds_from_names(tmp_path: Path) -> None:
    floats, deep = np.ones((4, 5), np.float32), np.ones((4, 5, 3), np.float32)
    kinds: dict[str, tuple[Any, str | None]] = {
        "rgb": (mask(), "image"),
        "seg_left": (mask(), "segmentation"),
        "mask": (mask()[..., 0], "mask"),
        "depth_left": (floats, "depth"),
        "disparity": (floats, "disparity"),
        "normals": (deep, "normals"),
        "flow": (deep[..., :2], "flow"),
        "other": (floats, None),
    }
    source = tree(tmp_path / "tree", **{name: value for name, (value, _) in kinds.items()})
    for name in ("action", "qpos"):
        np.save(source / "episode" / f"{name}.npy", np.ones((3, 7), np.float32))
    found = {spec.name: spec.kind for spec in seqrecord.open_source(source).schema().values()}
    more = {"action": "action", "qpos": "state", "frame_number": "frame_number"}
    assert found == {name: kind for name, (_, kind) in kinds.items()} | more


def test_topics_of_images_infer_kinds(tmp_path: Path) -> None:
    """Depth of 16 bits is in millimetres and depth of floats in metres, as ROS has it (REP 118)."""
    shorts, floats = np.ones((4, 5), np.uint16), np.ones((4, 5), np.float32)
    kinds: dict[str, tuple[Any, str, str, str | None]] = {
        "depth": (shorts, "16UC1", "depth", "mm"),
        "far.depth": (floats, "32FC1", "depth", "m"),
        "seg": (mask(), "rgb8", "segmentation", None),
        "color": (mask(), "rgb8", "image", None),
        "thermal": (shorts, "16UC1", "image", None),
    }
    messages = [
        ("/" + name.replace(".", "/"), 10**18, image(pixels, encoding))
        for name, (pixels, encoding, _, _) in kinds.items()
    ]
    write_mcap(tmp_path / "run.mcap", messages)
    source = seqrecord.open_source(tmp_path, clock="/color")
    found = {spec.name: (spec.kind, spec.unit) for spec in source.schema().values()}
    expected = {name: (kind, unit) for name, (_, _, kind, unit) in kinds.items()}
    assert found == expected | {"log_time": ("timestamp", "ns")}
    # HDF5 features, by their mapped names.
    with h5py.File(tmp_path / "e.hdf5", "w") as file:
        for name in ("rgb", "mask"):
            file[f"observations/images/{name}"] = np.stack([mask()] * 3)
    places = {"a_mask": "/observations/images/mask", "rgb": "/observations/images/rgb"}
    source = seqrecord.open_source(tmp_path / "e.hdf5", map=places)
    found = {name: (spec.kind, spec.unit) for name, spec in source.schema().items()}
    assert found == {"a_mask": ("mask", None), "rgb": ("image", None)}


def test_coloured_masks_keep_their_colours(tmp_path: Path) -> None:
    """Also masks without a kind, written by hand with a mask's name."""
    names = ["mask", "seg", "observation.images.seg", "left_labels", "maskLeft"]
    path = dataset(tmp_path / "a", **dict.fromkeys(names, mask()))
    for step in (Resize((5, 7)), RandomResizedCrop((5, 7), (0.4, 0.9))):
        batch = batch_of(path, step)
        assert [colours(batch[name]) <= 3 for name in names] == [True] * 5
    edit.describe_features(path, kinds={"seg": "image"})  # an image with a mask's name
    assert colours(batch_of(path, Resize((5, 7)))["seg"]) > 3


# ---- obeyed


def test_resize_scales_disparity_and_flips_negate_x_of_normals(tmp_path: Path) -> None:
    normals = np.tile(np.array([0.5, 0.25, -1.0], np.float32), (8, 10, 1))
    declared = {n: {"kind": "disparity"} for n in ("disp16", "d")} | {"n": {"kind": "normals"}}
    values = {
        "disparity": np.full((8, 10), 3.0, np.float32),
        "disp16": np.full((8, 10), 40_000, np.uint16),
        "d": np.full((8, 10, 1), 3.0, np.float64),
        "depth": np.full((8, 10), 3.0, np.float32),
        "n": normals,
        "normal": normals,
    }
    path = dataset(tmp_path / "a", declared, **values)
    for device in (None, "cpu"):
        batch = batch_of(path, Resize((4, 20)), HorizontalFlip(1.0), device=device)
        # The largest 16-bit disparity stays the largest.
        for name, value in {"disparity": 6.0, "disp16": 65_535, "d": 6.0, "depth": 3.0}.items():
            assert np.unique(batch[name]).tolist() == [value], name
        for name in ("n", "normal"):
            assert np.unique(batch[name].reshape(-1, 3), axis=0).tolist() == [[-0.5, 0.25, -1.0]]
    batch = batch_of(path, Resize((4, 20)))
    assert np.unique(batch["n"].reshape(-1, 3), axis=0).tolist() == [[0.5, 0.25, -1.0]]


def test_coded_vectors_are_refused(tmp_path: Path) -> None:
    for number, (dtype, name, kind, step) in enumerate(
        (
            ("u1", "normals", None, HorizontalFlip()),
            ("i2", "n", "normals", HorizontalFlip()),
            ("u2", "n", "flow", HorizontalFlip()),
            ("u2", "flow", None, Resize((4, 4))),
            ("u2", "n", "flow", RandomResizedCrop((4, 4))),
        )
    ):
        values = {name: np.ones((8, 10, 3), dtype)}
        path = dataset(tmp_path / f"{number}", {name: {"kind": kind}}, **values)
        with pytest.raises(ClipError, match="coded as integers") as caught:
            SeqRecordPipe(path, clip_len=2, clip_transform=step)
        assert caught.value.feature == name
        command = str(caught.value.expected).partition("`seqrecord ")[2].partition("`")[0]
        run(*command.replace("PATH", str(path)).split())
        SeqRecordPipe(path, clip_len=2, clip_transform=step)


PAIRS = [
    *(("image_left", "image_right"), ("image_lcam_front", "image_rcam_front")),
    *(("image_cam0", "image_cam1"), ("image_0", "image_1"), ("image_2", "image_3")),
    *(("left", "right"), ("Left_camera", "Right_camera"), ("cam0", "cam1")),
    ("observation.images.cam_left", "observation.images.cam_right"),
    *(("image_L", "image_R"), ("imageleft", "imageright"), ("infra1", "infra2")),
    *(("imageL", "imageR"), ("rgbLeft", "rgbRight")),
]


def test_flipped_stereo_pairs_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left, right = PAIRS[0]
    path = dataset(tmp_path / "a", **{left: mask(), right: mask(), "image_front": mask()})
    with caplog.at_level(logging.WARNING, "seqrecord"):
        SeqRecordPipe(path, clip_len=2, clip_transform=HorizontalFlip())
    [message] = caplog.messages
    assert f"mirrors {left} and {right}" in message
    for left, right in PAIRS:
        assert partner_of(left, [left, right, "image_front"]) == right
    names = ["image", "image_1", "wrist", "front", "cam_high", "cam_low", "image_lcam_front"]
    assert [partner_of(name, names) for name in names] == [None] * len(names)


# Schemas


_U1 = np.dtype("u1")
_DTYPES = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()  # noqa: SIM905


def _spec(**changes: Any) -> FeatureSpec:
    return FeatureSpec(**{"name": "a", "dtype": _U1, "shape": (2,), **changes})


def test_every_dtype_has_one_spelling() -> None:
    for text in _DTYPES:
        dtype = np.dtype(text)
        for same in (dtype, dtype.newbyteorder(">"), np.dtype(text, metadata={"x": 1})):
            spec = _spec(dtype=same)
            assert spec.to_json()["dtype"] == text
            assert spec.dtype.metadata is None
            assert FeatureSpec.from_json(spec.to_json()) == spec
        assert _spec(dtype=dtype).nbytes == 2 * dtype.itemsize


_REFUSED: dict[str, Any] = {
    "dtype": ["O", "V8", "S4", "U4", "M8[s]", "m8", "g", "G", "i4,i4", "(2,)f4", "x"],
    "name": [
        *("", ".", ".a", "a.", "-a", "a-", "a/b", "../a", "a b", "a\n", "ä"),
        "x" * (MAX_NAME_LENGTH + 1),
    ],
    "shape": [
        *((0,), (-1,), (2**31,), (True,), (1.0,), ("2",), (1,) * 9, [2], (2**30 + 1,)),
        *((2**31 - 1,) * 8, (None, 2**30, 2)),
    ],
    "codec": [[{"id": "zstd"}], ({},), ({"id": 1},), ("zstd",), ({"id": "zstd"},) * 5],
    "group": [-1, 256, True, 1.0],
    "kind": ["", "Image", "a" * 33, 1],
    "unit": ["", "°", "m\n", "m" * 33],
    "value": ["str", None, []],
}


@pytest.mark.parametrize("field", _REFUSED)
def test_invalid_fields_are_refused(field: str) -> None:
    for value in _REFUSED[field]:
        with pytest.raises(SchemaError):
            _spec(**{field: value})
        if field not in ("shape", "codec"):  # lists in JSON
            with pytest.raises(SchemaError):
                FeatureSpec.from_json({**_spec().to_json(), field: value})
    for value in (None, [], {}, {"name": "a"}, 1, "a"):
        with pytest.raises(SchemaError):
            FeatureSpec.from_json(value)


def test_names_and_shapes() -> None:
    for name in ("a", "_", "0", "a.b-c_D", "a..b", "x" * MAX_NAME_LENGTH):
        assert _spec(name=name).name == name
    assert _spec(shape=()).nbytes == 1
    assert _spec(shape=(MAX_FRAME_BYTES,)).nbytes == MAX_FRAME_BYTES
    assert _spec(shape=(np.int64(3), None)).shape == (3, None)
    assert _spec(shape=(None, 4), dtype=np.dtype("<f4")).nbytes == 16
    assert not _spec(shape=(None,)).is_fixed
    spec = _spec(shape=(None, 3))
    shapes = ((1, 3), (9, 3), (3,), (1, 2), (1, 3, 1))
    assert [spec.accepts(shape) for shape in shapes] == [True, True, False, False, False]


def test_schema_round_trip_and_order() -> None:
    a, b = _spec(), _spec(name="b", codec=({"id": "zstd", "level": 1},))
    schema = Schema([a, b])
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert Schema([b, a]) != schema, "the order is that of the columns"
    assert hash(Schema([a, b])) == hash(schema)
    assert Schema([a, _spec(name="b")]) != schema
    assert [schema.position(name) for name in schema] == [0, 1]
    assert list(schema.select(["b"])) == ["b"]
    assert schema.select(None) is schema
    assert not schema.with_codecs({"b": ()})["b"].codec
    with pytest.raises(SchemaError, match="no such feature"):
        schema.select(["c"])


@pytest.mark.parametrize("value", ["text", "bytes"])
def test_text_and_bytes_are_stored_as_bytes_of_variable_length(value: Any) -> None:
    spec = _spec(shape=(None,), value=value)
    assert FeatureSpec.from_json(spec.to_json()) == spec != _spec(shape=(None,))
    assert str(spec) == f"a: {value}"
    for change in ({"shape": (2,)}, {"shape": (None, 2)}, {"dtype": np.dtype("i1")}):
        with pytest.raises(SchemaError, match="text and bytes"):
            _spec(**{"shape": (None,), "value": value, **change})


def test_groups() -> None:
    schema = Schema([_spec(name=n, group=g) for n, g in zip("abcd", (0, 1, 0, 2), strict=True)])
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.num_groups == 3
    assert [list(group) for group in schema.groups] == [["a", "c"], ["b"], ["d"]]
    subset = schema.select(["d", "b"])
    assert [list(group) for group in subset.groups] == [["b"], ["d"]]
    assert subset["d"].group == 2, "a selection keeps the numbers of its dataset"
    for groups in ((1,), (1, 0), (0, 2), (0, 1, 3)):
        broken = Schema([_spec(name=f"f{i}", group=g) for i, g in enumerate(groups)])
        with pytest.raises(SchemaError, match="groups are not numbered"):
            broken.check_groups()
        with pytest.raises(SchemaError, match="groups are not numbered"):
            Schema.from_json(broken.to_json())


def test_schemas_are_dicts_that_do_not_change() -> None:
    specs = [FeatureSpec(name, np.dtype("u1"), (2,)) for name in "ba"]
    schema = Schema(specs)
    assert dict(schema) == {"b": specs[0], "a": specs[1]}
    assert list(schema) == ["b", "a"]
    assert schema != Schema(specs[::-1])
    assert not schema != Schema(specs)  # noqa: SIM202 - dicts compare by another method
    assert len({schema, Schema(specs), Schema(specs[::-1])}) == 2
    for same in (pickle.loads(pickle.dumps(schema)), copy.copy(schema), copy.deepcopy(schema)):
        assert (type(same), same, hash(same)) == (Schema, schema, hash(schema))
    changes: list[Callable[[Any], Any]] = [
        lambda one: one.__setitem__("c", specs[0]),
        lambda one: one.__delitem__("a"),
        lambda one: one.update(c=specs[0]),
        lambda one: one.setdefault("c", specs[0]),
        lambda one: one.pop("a"),
        lambda one: one.popitem(),
        lambda one: one.clear(),
        lambda one: one.__ior__({"c": specs[0]}),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="a Schema does not change"):
            change(schema)
    assert list(schema) == ["b", "a"]
