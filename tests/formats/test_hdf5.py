"""HDF5 files as ALOHA, robomimic and DROID write them, by h5py as they do."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Hdf5Source, inventory_of
from tests.formats.format_cases.hdf5 import (
    write_aloha,
    write_droid,
    write_robomimic,
    write_video_of_droid,
)
from tests.kit.bags import jpeg
from tests.kit.datasets import noise
from tests.kit.source_faults import check_refused, frames_of
from tests.kit.video_file_data import pictures, write_video

Array = npt.NDArray[Any]


def _decoded(data: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(data)))


# --- layouts ---------------------------------------------------------------------------------


def test_aloha(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        write_aloha(tmp_path / f"episode_{number}.hdf5", seed=number, length=number + 1)
    source = open_source(tmp_path)
    infos = source.episodes()
    keys = [*(("episode_0", 1), ("episode_2", 3), ("episode_10", 11))]
    assert [(info.key, info.num_frames) for info in infos] == keys
    assert infos[1].metadata == {
        "layout": "ALOHA", "sim": False, "compress": False,
        "language_raw": "fold the towel", "file": "episode_2.hdf5",
    }  # fmt: skip


def test_compressed_aloha_equals_its_own_reader(tmp_path: Path) -> None:
    write_aloha(tmp_path / "episode_0.hdf5", compress=True)
    name = "observations.images.cam_low"
    with h5py.File(tmp_path / "episode_0.hdf5") as file:
        padded = file["observations/images/cam_low"][()]
        # OpenCV decodes to BGR, which ALOHA takes for RGB.
        own = [_decoded(row.tobytes())[..., ::-1] for row in padded]
    source = Hdf5Source(tmp_path)
    assert "compress_len" not in source.schema()
    assert str(source.schema()[name]) == f"{name}: uint8 [6, 8, 3]"
    rgb = frames_of(Hdf5Source(tmp_path, jpeg_order="rgb"))
    mapped = Hdf5Source(tmp_path, keep_encoded=True, map={"image": "/observations/images/cam_low"})
    assert mapped.schema()["image"].codec == ()
    frames = zip(frames_of(source), rgb, frames_of(mapped), own, strict=True)
    for frame, other, mapped_frame, image in frames:
        np.testing.assert_array_equal(frame[name], image, strict=True)
        np.testing.assert_array_equal(other[name], image[..., ::-1], strict=True)
        np.testing.assert_array_equal(mapped_frame["image"], image, strict=True)
    assert Hdf5Source(tmp_path, keep_encoded=True).schema()[name].codec == ()
    kept = Hdf5Source(tmp_path, keep_encoded=True, jpeg_order="rgb")
    assert kept.schema()[name].codec == ({"id": "seqrecord.image", "format": "jpeg"},)
    for frame, row in zip(frames_of(kept), padded, strict=True):
        assert frame[name] == EncodedImage(row.tobytes().rstrip(b"\0"))
    with pytest.raises(SourceError, match="invalid jpeg_order; expected: rgb or bgr; got: gbr"):
        Hdf5Source(tmp_path, jpeg_order="gbr")


def test_robomimic(tmp_path: Path) -> None:
    write_robomimic(tmp_path / "image.hdf5", tuple(range(1, 12)))
    source = open_source(tmp_path / "image.hdf5", format="hdf5")
    infos = source.episodes()
    keys = [(f"image/demo_{n}", n + 1) for n in range(11)]
    assert [(info.key, info.num_frames) for info in infos] == keys
    assert infos[1].metadata == {
        "layout": "robomimic", "demonstration": "demo_1", "num_samples": 2, "env_name": "Lift",
        "masks": ["valid"], "file": "image.hdf5", "group": "/data/demo_1",
    }  # fmt: skip
    assert infos[1].fps == 20
    chosen = Hdf5Source(tmp_path, features=["next_obs.robot0_eef_pos", "dones"])
    frames = frames_of(chosen, 10)
    with h5py.File(tmp_path / "image.hdf5") as file:
        for name in chosen.schema():
            array = file[f"data/demo_10/{name.replace('.', '/')}"][()]
            np.testing.assert_array_equal([frame[name] for frame in frames], array, strict=True)


def test_droid(tmp_path: Path) -> None:
    write_droid(tmp_path / "AUTOLab" / "success" / "Fri_Jul_7", 1)
    write_droid(tmp_path / "AUTOLab" / "failure" / "Mon_Jul_3", 2, metadata=False)
    source = open_source(tmp_path)
    bare, named = source.episodes()
    assert (bare.key, bare.num_frames) == ("AUTOLab/failure/Mon_Jul_3", 4)
    assert named.key == "AUTOLab/success/Fri_Jul_7"
    assert named.metadata["lab"] == "AUTOLab"
    assert named.metadata["success"] is True
    assert "extra" not in named.metadata
    patterns = [each.pattern for each in inventory_of(source).left_out]
    assert "observation/controller_info/movement_enabled" in patterns
    # Without metadata the cameras keep their numbers, and the other episode lacks them.
    assert "observation.camera_type.12" in frames_of(source, 0)[0]
    assert "observation.camera_type.12" not in frames_of(source, 1)[0]


def test_texts(tmp_path: Path) -> None:
    write_aloha(tmp_path / "a.hdf5", length=3)
    texts = ["öffnen", "", "greifen"]
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["observations/task"] = texts
        file["observations/code"] = np.array([b"a", b"bc", b"d"], "S2")
        file["hints"] = ["one", "two"]  # not one a frame
        file.attrs["operator"] = b"caf\xc3\xa9"
    source = Hdf5Source(tmp_path)
    [info] = source.episodes()
    assert str(source.schema()["observations.task"]) == "observations.task: text"
    assert [each.pattern for each in inventory_of(source).left_out] == ["hints"]
    assert info.metadata["operator"] == "café"
    assert [frame["observations.task"] for frame in frames_of(source)] == texts
    assert [frame["observations.code"] for frame in frames_of(source)] == ["a", "bc", "d"]
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["observations/task"]
        file["observations/task"] = np.array([b"a", b"\xff", b"b"], h5py.string_dtype())
    with pytest.raises(SourceError, match=r"text is not UTF-8; .*task; frame: 1"):
        frames_of(Hdf5Source(tmp_path))


def test_values_with_the_names_of_an_episodes_place(tmp_path: Path) -> None:
    """They are not where the episode is."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = file["observations/qpos"] = np.arange(6.0).reshape(3, 2)
        file.attrs["group"] = "kitchen"
    source = open_source(tmp_path)
    assert [frame["action"].tolist() for frame in frames_of(source)] == [[0, 1], [2, 3], [4, 5]]
    assert source.episodes()[0].metadata == {"layout": "ALOHA", "file": "a.hdf5"}
    [row] = inventory_of(source).left_out
    assert (row.pattern, row.count) == ("value group", 1)


def test_two_datasets_of_one_feature_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("action", "observations/arm/qpos", "observations/arm.qpos"):
            file[name] = np.zeros((3, 2))
    with pytest.raises(SourceError, match=r"same feature name.*observations.arm.qpos"):
        open_source(tmp_path).schema()
    places = {"qpos": "observations/arm/qpos"}
    assert len(frames_of(open_source(tmp_path, map=places))) == 3


def test_a_map_names_features_of_any_layout(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["sensors/front/rgb"] = np.arange(2 * 4 * 5 * 3, dtype="u1").reshape(2, 4, 5, 3)
        file["ctrl"] = np.arange(6, dtype=">f4").reshape(2, 3)
        file["other"] = np.zeros(9)
    with pytest.raises(SourceError, match="unknown layout") as caught:
        open_source(tmp_path).schema()
    assert "--map FEATURE=PATH" in str(caught.value.expected)
    assert caught.value.got == "/ctrl [2, 3], /other [9], /sensors/front/rgb [2, 4, 5, 3]"
    source = open_source(tmp_path, map={"image": "/sensors/front/rgb", "action": "ctrl"})
    specs = ["image: uint8 [4, 5, 3]", "action: float32 [3]"]
    assert [str(spec) for spec in source.schema().values()] == specs
    second = np.asarray(frames_of(source)[1]["action"])
    np.testing.assert_array_equal(second, np.array([3, 4, 5], "<f4"), strict=True)
    missing = r"missing dataset /sensors/back; .*feature: image; .*/ctrl"
    with pytest.raises(SourceError, match=missing):
        open_source(tmp_path, map={"image": "/sensors/back"}).schema()
    write_robomimic(tmp_path / "demos.h5")
    demos = Hdf5Source(tmp_path / "demos.h5", map={"image": "obs/agentview_image"})
    assert [len(frames_of(demos, n)) for n in (0, 1)] == [3, 5]
    assert list(demos.schema()) == ["image"]


def test_images_of_a_length_of_their_own(tmp_path: Path) -> None:
    images = noise(3, 6, 8, 3)
    with h5py.File(tmp_path / "run.h5", "w") as file:
        rows = file.create_dataset("rgb", (3,), h5py.vlen_dtype(np.uint8))
        for number, image in enumerate(images):
            rows[number] = np.frombuffer(jpeg(image), np.uint8)
        file["fixed"] = np.array([jpeg(image) for image in images], "S")
    source = Hdf5Source(tmp_path, map={"a": "rgb", "b": "fixed"}, keep_encoded=True)
    for frame, image in zip(frames_of(source), images, strict=True):
        assert frame == {"a": EncodedImage(jpeg(image)), "b": EncodedImage(jpeg(image))}
    decoded = frames_of(Hdf5Source(tmp_path, map={"a": "rgb"}))[1]["a"]
    np.testing.assert_array_equal(decoded, _decoded(jpeg(images[1])), strict=True)


def test_rows_come_once_whatever_the_chunks(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(1000, 3)).astype("<f4")
    chunks: tuple[tuple[int, int] | None, ...] = (None, (1, 3), (7, 2), (1000, 3), (999, 1))
    names = {f"c{number}": f"c{number}" for number in range(len(chunks))}
    with h5py.File(tmp_path / "run.h5", "w") as file:
        for name, chunk in zip(names, chunks, strict=True):
            file.create_dataset(name, data=values, chunks=chunk)
    frames = frames_of(Hdf5Source(tmp_path, map=names))
    for name in names:
        np.testing.assert_array_equal([frame[name] for frame in frames], values, strict=True)


def test_files_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("run_10.h5", "run_9.h5", "b/run_1.h5", "a/x/run_2.h5", ".hidden.h5", "v1.5.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_aloha(tmp_path / name, length=1)
    (tmp_path / "a" / "note.txt").touch()
    for root, keys in (
        (tmp_path, ["a/x/run_2", "b/run_1", "run_9", "run_10", "v1.5"]),
        (tmp_path / "run_9.h5", ["run_9"]),
    ):
        assert [info.key for info in open_source(root).episodes()] == keys
    with pytest.raises(SourceError, match="no data in the format hdf5"):
        open_source(tmp_path / "a" / "note.txt", format="hdf5")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="leads to a folder above"):
        open_source(tmp_path).schema()


@pytest.mark.parametrize("is_deep", [False, True])
def test_the_quick_look_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deep: bool
) -> None:
    """A tree of many folders is looked at to its depth before it is to its width."""
    entries, scandir = 0, os.scandir

    @contextmanager
    def counted(path: Any) -> Iterator[Iterator[Any]]:
        def each(inner: Any) -> Iterator[Any]:
            nonlocal entries
            for entry in inner:
                entries += 1
                yield entry

        with scandir(path) as inner:
            yield each(inner)

    if is_deep:
        for number in range(200):
            folder = tmp_path / f"{number}" / "date" / "episode"
            folder.mkdir(parents=True)
            (folder / "trajectory.h5").touch()
    else:
        (tmp_path / "00").mkdir()
        for file in range(1100):
            (tmp_path / "00" / f"{file}.png").touch()
        for number in range(1, 20):
            (tmp_path / f"{number:02d}").symlink_to(tmp_path / "00")
    monkeypatch.setattr(os, "scandir", counted)
    if is_deep:
        open_source(tmp_path, format="hdf5")
        assert entries < 210
    else:
        with pytest.raises(SourceError, match="no data in the format hdf5"):
            open_source(tmp_path, format="hdf5")
        assert 9_000 < entries <= 11_100


# --- broken files ----------------------------------------------------------------------------


def _replace(name: str, **options: Any) -> Callable[[Any], None]:
    """Another dataset in the place of one, or a further one."""

    def change(file: Any) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, **options)

    return change


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((5, 14), "<f4")
    layout[:] = h5py.VirtualSource("episode_0.hdf5", "action", (5, 14))
    file.create_virtual_dataset(SECRET, layout)


def _all_rows(**options: Any) -> Callable[[Any], None]:
    """Other datasets in the place of all."""

    def change(file: Any) -> None:
        del file["observations"]
        for name in ("action", QPOS):
            _replace(name, **options)(file)

    return change


def _long_text(file: Any) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kind = h5py.h5t.C_S1.copy()
    kind.set_size((1 << 31) - 1)
    space = h5py.h5s.create_simple((5,))
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    layout.set_chunk((1,))
    h5py.h5d.create(file.id, b"long", kind, space, layout)


def _chunk(data: bytes) -> Callable[[Any], None]:
    """Store these bytes as a compressed chunk of 280 bytes."""

    def change(file: Any) -> None:
        _replace("action", shape=(5, 14), dtype="<f4", chunks=(5, 14), compression="gzip")(file)
        file["action"].id.write_direct_chunk((0, 0), data)

    return change


QPOS, SECRET = "observations/qpos", "observations/secret"
OUTSIDE = {"shape": (5, 14), "dtype": "<f4", "external": [("episode_0.hdf5", 0, 5 * 56)]}
HUGE = {"shape": (5, 1 << 40), "dtype": "u1", "chunks": (1, 1 << 20)}  # nothing of it is there
EMPTY = {"shape": (1 << 27, 14), "dtype": "<f4", "chunks": (1024, 14)}

BROKEN: list[tuple[Callable[[Any], object], str]] = [
    (_all_rows(**EMPTY), "declares far more bytes than it stores; .*of 0 stored"),
    (
        _replace(QPOS, data=np.zeros((4, 14), "<f4")),
        "number of rows differs .*qpos; expected: 5 rows; got: 4 rows",
    ),
    (
        _replace("action", data=np.zeros((5, 14))),
        "wrong dtype; .*feature: action.*expected: float32; got: float64",
    ),
    (_replace("action", data=np.zeros((5, 14, 1), "<f4")), "wrong shape; .*action"),
    (
        lambda file: file.__setitem__(SECRET, h5py.ExternalLink("episode_0.hdf5", "/action")),
        "external link",
    ),
    (_virtual, "are in another file"),
    (_replace(SECRET, **OUTSIDE), "are in another file"),
    (
        lambda file: file.__setitem__("observations/again", file["/observations"]),
        "groups nested too deeply",
    ),
    (_all_rows(data=np.zeros((0, 14), "<f4")), "episode (without|has no) frames"),
    (_replace("observations/huge", **HUGE), "rows of /observations/huge .* large"),
    (_long_text, "rows of /long too large"),
    (
        _chunk(zlib.compress(bytes(100 << 20), 1)),
        "chunk of action stores more bytes than it declares",
    ),
    (_chunk(b"no gzip stream"), r"cannot read /action\[0:5\]; .*feature: action; got"),
]


def test_a_broken_episode_is_refused_by_name(tmp_path: Path) -> None:
    for number in range(3):
        write_aloha(tmp_path / f"episode_{number}.hdf5", number)
    path = tmp_path / "episode_1.hdf5"
    whole = path.read_bytes()
    for change, message in BROKEN:
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            change(file)
        source = Hdf5Source(tmp_path)
        assert [info.key for info in source.episodes()] == [f"episode_{n}" for n in range(3)]
        check_refused(source, ["episode_1"], message, file=path)


def test_broken_images_and_files(tmp_path: Path) -> None:
    path, image = tmp_path / "episode_0.hdf5", "observations/images/cam_high"
    write_aloha(path, compress=True)
    with h5py.File(path, "a") as file:
        file[image][3, :40] = 0
    with pytest.raises(SourceError, match="the row is not an image") as caught:
        frames_of(Hdf5Source(tmp_path))
    assert (caught.value.feature, caught.value.frame) == (image.replace("/", "."), 3)
    with h5py.File(path, "a") as file:
        file[image][0] = 0
    with pytest.raises(SourceError, match="first row of a compressed dataset is not an image"):
        Hdf5Source(tmp_path).schema()
    path.write_bytes(b"\x89HDF but not one")
    with pytest.raises(SourceError, match=r"unreadable HDF5 file; .*episode_0"):
        Hdf5Source(tmp_path).schema()


def test_videos_of_droid(tmp_path: Path) -> None:
    """A stereo file is no camera; videos can be left out, or read alone."""
    [path, _] = write_video_of_droid(tmp_path, "Fri", 1, 4, 4)
    write_video(path.with_name("11-stereo.mp4"), pictures(4))
    source: Any = Hdf5Source(tmp_path)
    schema, cameras = source.schema(), ["observation.image.wrist", "observation.image.ext1"]
    assert [name for name, spec in schema.items() if spec.is_video] == cameras
    others = Hdf5Source(tmp_path, without_video=True)
    assert [name for name in schema if name not in cameras] == list(others.schema())
    np.testing.assert_equal(frames_of(source), frames_of(others))
    assert frames_of(Hdf5Source(tmp_path, features=cameras)) == [{}] * 4


def test_a_video_of_droid_with_other_frames_than_rows(tmp_path: Path) -> None:
    for seed, (name, frames) in enumerate((("Fri", 4), ("Sat", 3), ("Sun", 5))):
        write_video_of_droid(tmp_path / "set", name, seed, frames)
    source = open_source(tmp_path / "set")
    report = seqrecord.convert(source, tmp_path / "records", workers=1, skip_bad_episodes=True)
    assert report.written == ("Fri",)
    for bad, key, video, count in zip(report.bad, ("Sat", "Sun"), (1, 2), (3, 5), strict=True):
        assert bad.key == key
        for text in (f"1{video}.mp4", "observation.image.wrist", "expected: 4", f"got: {count}"):
            assert text in bad.error
