"""EXIF orientations and files of several images are applied or refused, never ignored silently."""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, SeqRecordError, SeqRecordWriter, open_source
from seqrecord.errors import FrameError, SourceError
from seqrecord.sources import Source
from tests.formats.format_cases.scenes import write_co3d
from tests.formats.format_cases.sequences import write_kitti, write_tum
from tests.formats.format_cases.webdataset import write_tar
from tests.formats.image_data import STORED, encoded, late_exif, raw_profile, shown, stored
from tests.kit.command_line import fail, run
from tests.kit.lerobot_data import write_v21
from tests.kit.trees import make_frames, write_v1, write_v2

COUNT = 2


def write_folder(root: Path, images: list[bytes], ending: str = "png") -> Path:
    folder = root / "tree" / "run" / "rgb"
    folder.mkdir(parents=True)
    for number, data in enumerate(images):
        (folder / f"{number:06d}.{ending}").write_bytes(data)
    return root / "tree"


def values(source: Source, feature: str) -> list[Any]:
    """Frames of the feature with this name, or `….feature`."""
    [feature] = [name for name in source.schema() if name.split(".")[-1] == feature]
    return [f[feature] for info in source.episodes() for f in source.frames(info)]


@pytest.mark.parametrize(
    ("format_", "ending"), [("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("TIFF", "tif")]
)
def test_images_are_rotated_by_an_option(
    tmp_path: Path, format_: str, ending: str, thorough: bool
) -> None:
    """Without it, it is an error. Pillow rotates a TIFF while loading it."""
    options: dict[str, Any] = {"lossless": True} if format_ == "WEBP" else {}
    for orientation in range(1, 9) if thorough or format_ == "PNG" else (1, 3, 6):
        data = encoded(orientation, format_, **options)
        root = write_folder(tmp_path / f"{orientation}", [data] * COUNT, ending)
        turned = values(open_source(root, exif="apply"), "rgb")
        np.testing.assert_array_equal(turned, [shown(data)] * COUNT)
        pixels = stored(data) if format_ == "JPEG" else STORED
        ignored = values(open_source(root, exif="ignore"), "rgb")
        np.testing.assert_array_equal(ignored, [pixels] * COUNT)
        if orientation != 1:
            with pytest.raises(SourceError, match=r"exif=apply.*exif=ignore") as caught:
                values(open_source(root), "rgb")
            assert (caught.value.feature, caught.value.episode) == ("rgb", "run")


def test_orientations_in_other_places(tmp_path: Path) -> None:
    """After the pixels, in ImageMagick's text, and in XMP if EXIF has none."""
    for name, change in (("late", late_exif), ("raw", raw_profile)):
        data = change(encoded(6))
        assert b"eXIf" not in data[:200]
        source = open_source(write_folder(tmp_path / name, [data]), exif="apply")
        assert source.schema()["rgb"].shape == (48, 32, 3)
        np.testing.assert_array_equal(values(source, "rgb"), [shown(encoded(6))])
    xmp = b'<x:xmpmeta xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    stream = io.BytesIO()
    Image.fromarray(STORED).save(stream, "JPEG", xmp=xmp)
    if b"tiff:Orientation" in stream.getvalue():  # older Pillow writes no XMP
        source = open_source(
            write_folder(tmp_path / "xmp", [stream.getvalue()], "jpg"), exif="apply"
        )
        assert source.schema()["rgb"].shape == (48, 32, 3)


def test_every_image_is_checked(tmp_path: Path) -> None:
    """The first ones are upright; a half turn keeps the size."""
    images = [encoded(1), encoded(1), encoded(3)]
    source = open_source(write_folder(tmp_path, images), exif="apply")
    np.testing.assert_array_equal(values(source, "rgb")[2], STORED[::-1, ::-1])
    source = open_source(source.root, keep_encoded=True)  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match="EXIF orientation 3") as caught:
        values(source, "rgb")
    assert caught.value.file is not None
    assert caught.value.file.endswith("000002.png")
    assert (caught.value.episode, caught.value.frame) == ("run", 2)


def test_invalid_orientations_are_ignored(tmp_path: Path) -> None:
    broken = encoded(6).replace(b"eXIf\x4d\x4d\x00\x2a\x00\x00\x00\x08", b"eXIf" + bytes(8))
    at = broken.index(b"eXIf")
    length = int.from_bytes(broken[at - 4 : at], "big")
    end = at + 4 + length
    broken = broken[:end] + zlib.crc32(broken[at:end]).to_bytes(4, "big") + broken[end + 4 :]
    images = [encoded(0), encoded(9), broken]
    source = open_source(write_folder(tmp_path, images), exif=None)
    np.testing.assert_array_equal(values(source, "rgb"), [STORED] * 3)


def test_the_command_line(tmp_path: Path) -> None:
    root = write_folder(tmp_path, [encoded(6)] * COUNT)
    message = fail("write", "--src", root, "--dst", tmp_path / "a", "--keep-encoded", "--quiet")
    assert "exif=ignore" in message
    assert "000000.png" in message
    assert "exif" in fail(
        "write", "--src", root, "--dst", tmp_path / "a", "--source-option", "exif=x"
    )
    options = ("--keep-encoded", "--quiet", "--source-option", "exif=ignore")
    run("write", "--src", root, "--dst", tmp_path / "b", *options)
    with seqrecord.open(tmp_path / "b") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][:]["rgb"], [STORED] * COUNT)
        assert dataset.features["rgb"].codec[0]["exif"] == "ignore"
    run("verify", "--deep", tmp_path / "b")


def test_images_read_in_place(tmp_path: Path) -> None:
    """Indexing checks each episode's first image; reading checks all."""
    root = write_folder(tmp_path / "turned", [encoded(6)])
    messages = [fail("index", root, "-o", tmp_path / "none")]
    root = write_folder(tmp_path, [encoded(1), encoded(6)])
    run("index", root, "-o", tmp_path / "index")
    with seqrecord.open(tmp_path / "index") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][0]["rgb"], STORED)
        with pytest.raises(SeqRecordError, match="EXIF orientation 6") as caught:
            dataset.episodes["run"][1]
    messages.append(str(caught.value))
    for number, text in enumerate(messages):
        assert "exif=ignore" in text
        assert f"rgb/00000{number}.png" in text
    run("index", root, "-o", tmp_path / "other", "--source-option", "exif=ignore")
    with seqrecord.open(tmp_path / "other") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][:]["rgb"], [STORED] * 2)


def test_writers_refuse_rotated_encoded_images(tmp_path: Path) -> None:
    def write(root: Path, *images: bytes, **options: Any) -> None:
        with SeqRecordWriter(root, **options) as writer, writer.episode("e") as episode:
            for each in images:
                episode.append({"x": EncodedImage(each)})

    for data, match in (
        (late_exif(encoded(8)), "EXIF orientation 8"),
        (animated("PNG", 3), "3 pictures"),
    ):
        for number, images in enumerate(([data], [encoded(), data])):
            with pytest.raises(FrameError, match=match):
                write(tmp_path / f"{match} {number}", *images)
    codec = [{"id": "seqrecord.image", "format": "png", "exif": "ignore"}]
    write(tmp_path / "ignored", encoded(8), codecs={"x": codec})
    with seqrecord.open(tmp_path / "ignored") as dataset:
        np.testing.assert_array_equal(dataset.episodes["e"][0]["x"], STORED)


def in_tar(root: Path, data: bytes) -> Path:
    write_tar(root / "a.tar", {"000000.rgb.png": data})
    return root


def in_hdf5(root: Path, data: bytes) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "a.h5", "w") as file:
        images = file.create_dataset("observations/images/rgb", (1,), h5py.vlen_dtype(np.uint8))
        images[0] = np.frombuffer(data, "u1")
        file["action"] = np.zeros((1, 2))
    return root


def in_mcap(root: Path, data: bytes) -> Path:
    pytest.importorskip("rosbags")
    from tests.kit.bags import compressed, write_mcap

    write_mcap(root / "a.mcap", [("/rgb", 0, compressed(data, "png"))])
    return root


def in_parquet(root: Path, data: bytes) -> Path:
    features = {"rgb": {"dtype": "image", "shape": [32, 48, 3], "names": None}}
    times = {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}
    return write_v21(root, {"rgb": [{"bytes": data, "path": "0.png"}]}, features | times, 1)


def in_tfrecords(root: Path, data: bytes) -> Path:
    pytest.importorskip("google.protobuf")
    from tests.formats.test_rlds import write_set
    from tests.formats.tf_records import example

    image = {"image": {"dtype": "uint8", "shape": {"dimensions": ["32", "48", "3"]}}}
    return write_set(root, [example({"steps/rgb": [data]})], {"rgb": image})


PLACES = [in_tar, in_hdf5, in_mcap, in_parquet, in_tfrecords]


@pytest.mark.parametrize("place", PLACES)
def test_images_inside_container_files(
    tmp_path: Path, place: Callable[[Path, bytes], Path]
) -> None:
    data = encoded(6)
    one, several = tmp_path / "one", tmp_path / "several"
    for folder in (one, several):
        folder.mkdir()
    root = place(one, data)
    with pytest.raises(SourceError, match=r"cannot stay encoded.*exif=ignore"):
        values(open_source(root, keep_encoded=True), "rgb")
    [value] = values(open_source(root, keep_encoded=True, exif="ignore"), "rgb")
    assert value.data == data
    with pytest.raises(SourceError, match="exif=apply") as caught:
        values(open_source(root), "rgb")
    assert caught.value.file is not None
    np.testing.assert_array_equal(values(open_source(root, exif="apply"), "rgb"), [shown(data)])
    np.testing.assert_array_equal(values(open_source(root, exif="ignore"), "rgb"), [STORED])
    root = place(several, animated("PNG"))
    with pytest.raises(SourceError, match="a file of 2 pictures"):
        values(open_source(root), "rgb")


def test_trees_of_known_layouts_need_an_option(tmp_path: Path) -> None:
    write_tum(tmp_path / "tum")
    write_kitti(tmp_path / "kitti", size=(32, 48))
    write_v1(tmp_path / "tartanair" / "env" / "Easy" / "P000", make_frames(0, COUNT))
    for name, file, feature in (
        ("tum", "rgb/1305031102.033000.png", "image"),
        ("kitti", "sequences/00/image_2/000001.png", "image_2"),
        ("tartanair", "env/Easy/P000/image_left/000001_left.png", "image_left"),
    ):
        root, path = tmp_path / name, tmp_path / name / file
        pixels = stored(path.read_bytes())
        path.write_bytes(encoded(3, pixels=pixels))
        for keep, match in ((False, "exif=apply"), (True, "exif=ignore")):
            with pytest.raises(SourceError, match=match) as caught:
                values(open_source(root, keep_encoded=keep), feature)
            assert caught.value.file == str(path)
        for exif, expected in (("apply", pixels[::-1, ::-1]), ("ignore", pixels)):
            got = values(open_source(root, exif=exif), feature)[1]
            np.testing.assert_array_equal(got, expected)


CODED = {
    "depth_lcam_front": "env/Data_easy/P000/depth_lcam_front/000001_lcam_front_depth.png",
    "flow_lcam_front": "env/Data_easy/P000/flow_lcam_front/000001_000002_flow.png",
    "mask_lcam_front": "env/Data_easy/P000/flow_lcam_front/000001_000002_flow.png",
    "depth": "apple/0_isot/depths/frame000002.jpg.geometric.png",
}


@pytest.mark.parametrize("feature", CODED)
def test_images_of_coded_values_can_only_be_ignored(feature: str, tmp_path: Path) -> None:
    """Depth and flow of TartanAir V2, depth of Co3D."""
    write_v2(tmp_path / "env" / "Data_easy" / "P000", make_frames(0, 3, v2=True))
    write_co3d(tmp_path)
    path = tmp_path / CODED[feature]
    root = tmp_path / Path(CODED[feature]).parts[0]

    def read(exif: str | None) -> list[Any]:
        source = open_source(root, features=[feature], exif=exif)
        frames = [frame for info in source.episodes() for frame in source.frames(info)]
        return [frame[feature] for frame in frames if feature in frame]  # the last has no flow

    expected = read(None)
    data = path.read_bytes()
    chunk = late_exif(encoded(3))
    at = chunk.index(b"eXIf") - 4
    length = int.from_bytes(chunk[at : at + 4], "big") + 12
    path.write_bytes(data[:33] + chunk[at : at + length] + data[33:])
    np.testing.assert_array_equal(read("ignore"), expected)
    for exif in (None, "apply"):
        with pytest.raises(SourceError, match="exif=ignore") as caught:
            read(exif)
        assert caught.value.file == str(path)
        assert caught.value.feature == feature


# --- cameras of turned images -----------------------------------------------------------------

NUMBERS = (40.0, 41.0, 15.5, 23.0)
"""fx, fy, cx, cy of images that are 48 x 32 pixels as stored, and 32 x 48 as shown."""

K = [[40.0, 0.0, 15.5], [0.0, 41.0, 23.0], [0.0, 0.0, 1.0]]


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(6))


def nerfstudio(root: Path, **values: Any) -> None:
    put(root / "a/images/0.png")
    frame = {"file_path": "images/0.png", "transform_matrix": np.eye(4).tolist()}
    (root / "a/transforms.json").write_text(json.dumps({**values, "frames": [frame]}))


def realestate10k(root: Path) -> None:
    put(root / "0123456789abcdef/33367.png")
    fx, fy, cx, cy = NUMBERS
    row = [33367, fx / 32, fy / 48, (cx + 0.5) / 32, (cy + 0.5) / 48, 0, 0]
    text = " ".join(map(str, [*row, *np.eye(4)[:3].ravel().tolist()]))
    (root / "0123456789abcdef.txt").write_text(f"https://www.youtube.com/watch?v=abc\n{text}\n")


def scannet(root: Path) -> None:
    put(root / "a/color/0.png")
    for name, matrix in (("pose/0", np.eye(4)), ("intrinsic/intrinsic_color", np.array(K))):
        (root / f"a/{name}.txt").parent.mkdir()
        np.savetxt(root / f"a/{name}.txt", matrix)


def scannetpp(root: Path) -> None:
    put(root / "a/iphone/rgb/frame_000000.png")
    frame = {"aligned_pose": np.eye(4).tolist(), "intrinsic": K}
    (root / "a/iphone/pose_intrinsic_imu.json").write_text(json.dumps({"frame_000000": frame}))


def kitti(root: Path) -> None:
    put(root / "sequences/00/image_2/000000.png")
    (root / "sequences/00/times.txt").write_text("0.0\n")
    matrix = "40 0 15.5 0 0 41 23 0 0 0 1 0"
    (root / "sequences/00/calib.txt").write_text(f"P0: {matrix}\nP2: {matrix}\n")


def tartanair(root: Path) -> None:
    trajectory = write_v1(root / "house/Easy/P000", make_frames(0, 1, size=(32, 48)))
    for side in ("left", "right"):
        put(trajectory / f"image_{side}/000000_{side}.png")


def folder(root: Path) -> None:
    put(root / "tree/run/rgb/000000.png")
    np.savetxt(root / "tree/run/K.txt", K)


SIZED: dict[str, Any] = {"w": 32, "h": 48, "fl_x": 40, "fl_y": 41, "cx": 16, "cy": 23.5}
HALF: dict[str, Any] = {"w": 16, "h": 24, "fl_x": 20, "fl_y": 20.5, "cx": 8, "cy": 11.75}
LAYOUTS: dict[str, tuple[Callable[[Path], None], Sequence[float]]] = {
    "nerfstudio": (partial(nerfstudio, **SIZED), NUMBERS),
    "nerfstudio, of smaller images": (partial(nerfstudio, **HALF), NUMBERS),
    "nerfstudio, an angle": (
        partial(nerfstudio, camera_angle_x=2 * math.atan(16 / 40)),
        (40.0, 40.0, 15.5, 23.5),
    ),
    "realestate10k": (realestate10k, NUMBERS),
    "scannet": (scannet, NUMBERS),
    "scannetpp": (scannetpp, NUMBERS),
    "kitti": (kitti, NUMBERS),
    "tartanair": (tartanair, (16.0, 16.0, 16.0, 24.0)),
    "folder": (folder, NUMBERS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cameras_are_of_turned_images(tmp_path: Path, layout: str) -> None:
    """Sizes and fractions of them refer to the frames: with `ignore`, to the stored pixels."""
    write, numbers = LAYOUTS[layout]
    write(tmp_path)
    features = ["image_left"] if layout == "tartanair" else None  # arrays are never turned
    for exif, size in (("apply", (32, 48)), ("ignore", (48, 32))):
        if exif == "ignore" and "w" in getattr(write, "keywords", {}):
            continue  # a camera of another aspect ratio
        source = open_source(tmp_path, features=features, exif=exif)
        [info] = source.episodes()
        frame: Any = next(iter(source.frames(info)))
        [shape] = [np.shape(value) for value in frame.values() if np.ndim(value) == 3]
        assert shape == (*size[::-1], 3)
        camera = info.metadata["camera"]
        assert (camera["width"], camera["height"]) == size
        if exif == "apply":
            found = [camera[name] for name in ("fx", "fy", "cx", "cy")]
            np.testing.assert_allclose(found, numbers)


def test_turned_scenes_of_different_sizes(tmp_path: Path) -> None:
    """Each image is compared with the size of its camera, after the turn."""
    nerfstudio(tmp_path / "turned", **SIZED)
    nerfstudio(tmp_path / "small", **SIZED)
    (tmp_path / "small/a/images/0.png").write_bytes(encoded(pixels=STORED[:24, :16]))
    source = open_source(tmp_path, exif="apply")
    assert source.schema()["image"].shape == (None, None, 3)
    frames: list[Any] = [frame for i in source.episodes() for frame in source.frames(i)]
    assert [frame["image"].shape[:2] for frame in frames] == [(24, 16), (48, 32)]


# --- several images in one file --------------------------------------------------------------


def animated(format_: str, count: int = 2, **options: Any) -> bytes:
    images = [Image.fromarray(np.roll(STORED, i, 0)) for i in range(count)]
    stream = io.BytesIO()
    images[0].save(stream, format_, save_all=True, append_images=images[1:], **options)
    return stream.getvalue()


def previewed() -> bytes:
    """A JPEG as by a camera, with a large preview as second image of its index."""
    data = bytearray(animated("MPO"))
    at = data.index(b"MPF\0") + 4
    order: Literal["little", "big"] = "little" if data[at : at + 2] == b"II" else "big"
    found = data.index((0xB002).to_bytes(2, order), at)
    entries = at + int.from_bytes(data[found + 8 : found + 12], order)
    data[entries + 16 : entries + 20] = (0x010002).to_bytes(4, order)
    return bytes(data)


@pytest.mark.parametrize(
    ("format_", "ending"), [("PNG", "png"), ("MPO", "jpg"), ("WEBP", "webp"), ("TIFF", "tiff")]
)
def test_files_of_several_images_are_refused(tmp_path: Path, format_: str, ending: str) -> None:
    single = encoded(1, "JPEG" if format_ == "MPO" else format_)
    root = write_folder(tmp_path, [single, animated(format_, 3)], ending)
    for keep in (False, True):
        with pytest.raises(SourceError, match="a file of 3 pictures, expected one") as caught:
            values(open_source(root, keep_encoded=keep), "rgb")
        assert str(caught.value.file).endswith(f"000001.{ending}")
    if ending in ("png", "jpg"):  # others are decoded during indexing
        run("index", root, "-o", tmp_path / "index")
        with (
            seqrecord.open(tmp_path / "index") as dataset,
            pytest.raises(SeqRecordError, match="3 pictures"),
        ):
            dataset.episodes["run"][1]


def test_files_of_one_image_are_accepted(tmp_path: Path) -> None:
    """An APNG with one image, and a JPEG with a preview."""
    for ending, data in (("png", animated("PNG", 1)), ("jpg", previewed())):
        source = open_source(write_folder(tmp_path / ending, [data], ending))
        np.testing.assert_array_equal(values(source, "rgb"), [stored(data)])
