"""`resize=`: frames are resized once, as they are decoded, on every path alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    Camera,
    EngineOptions,
    FeatureSpec,
    RandomCrop,
    Resize,
    Schema,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordWriter,
    export,
)
from seqrecord.errors import ClipError, SchemaError, StateError
from seqrecord.lerobot import LeRobotDataset
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import digests, names, resumed
from tests.kit.command_line import fail, run
from tests.kit.datasets import columns, write_dataset
from tests.kit.faults import CountingStorage
from tests.kit.lerobot_stand_in import install
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.video_data import HEIGHT, WIDTH

LENGTHS = {"a": 14, "b": 9}
FRAMES = sum(LENGTHS.values())
HALF = (HEIGHT // 2, WIDTH // 2)
CAMERA = {"fx": 100.0, "fy": 90.0, "cx": 50.5, "cy": 40.25}
CLIPS: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "seed": 2}
SIZES: dict[str, Any] = {"image": (40, 56), "depth": HALF}
CODECS = [
    *("raw", "jpeg:quality=95", "h264", "ffv1"),
    *(pytest.param(codec, marks=pytest.mark.slow) for codec in ("png", "balanced", "av1")),
]
Array = npt.NDArray[Any]


def pictures(count: int, seed: int) -> Array:
    """Smooth pictures in colour that move, uint8 [count, 96, 112, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (16, 19, 3), np.uint8)
    whole = Image.fromarray(small).resize((WIDTH + 40, HEIGHT + 40), Image.Resampling.BICUBIC)
    return np.stack(
        [np.asarray(whole)[i : i + HEIGHT, 2 * i : 2 * i + WIDTH] for i in range(count)]
    )


def labels_of(image: Array) -> Array:
    return image[..., 0] // 32


def write(path: Path, codec: str) -> Path:
    """`image` by a codec, and features of other kinds that are of its size."""
    codecs = {"image": codec, "seg": codec, "depth": "ffv1" if codec == "ffv1" else "balanced"}
    episodes = {}
    for number, (key, length) in enumerate(LENGTHS.items()):
        images = pictures(length, number)
        depth, labels = images[..., 1].astype(np.uint16) * 250, labels_of(images)
        episodes[key] = columns(
            image=images, depth=depth, labels=labels, seg=images, id=range(length)
        )
    metadata = {key: {"camera": CAMERA} for key in LENGTHS}
    write_dataset(path, episodes, metadata=metadata, codecs=codecs, chunk_frames=5)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQRECORD_HOME", str(tmp_path_factory.mktemp("home")))
        yield tmp_path_factory.mktemp("resize")


def dataset_at(home: Path, codec: str) -> Path:
    """The dataset of a codec, written once."""
    path = home / codec.partition(":")[0]
    return path if path.exists() else write(path, codec)


def area_means(frames: Array) -> Array:
    """Frames [n, H, W, …] in half of their size: the means of 2 x 2 pixels."""
    count, height, width = frames.shape[:3]
    blocks = frames.reshape(count, height // 2, 2, width // 2, 2, *frames.shape[3:])
    means: Array = blocks.mean(axis=(2, 4))
    return means


@pytest.fixture(scope="module", params=CODECS)
def path(request: pytest.FixtureRequest, home: Path) -> Path:
    return dataset_at(home, request.param)


@pytest.fixture(scope="module")
def video(home: Path) -> Path:
    return dataset_at(home, "h264")


@pytest.fixture(scope="module")
def raw(home: Path) -> Path:
    return dataset_at(home, "raw")


def clips_of(loader: Any, name: str | None = None) -> dict[tuple[str, int], bytes]:
    """The bytes of the features of each clip, or of one feature, by episode and start."""
    found, features = {}, [name] if name else ["image", "depth", "labels", "seg", "id"]
    for batch in loader:
        single = isinstance(batch["episode"], str)
        for i, place in enumerate(names(batch)):
            values = (batch[one] if single else batch[one][i] for one in features)
            found[place] = b"".join(value.numpy().tobytes() for value in values)
    return found


def test_values_by_codec(path: Path) -> None:
    """Images equal area averages, and about Pillow's result. For video, whose colours are stored
    at half size, the brightness is compared. Other features have the nearest pixel."""
    full = seqrecord.open(path).episodes["b"][:]
    weights = np.array([0.299, 0.587, 0.114]) if path.name in ("h264", "av1") else np.eye(3)
    for size in (HALF, (40, 56), (144, 200)):
        resize = dict.fromkeys(("image", "depth", "labels", "seg"), size)
        (clip,) = SeqRecordPipe(path, clip_len=9, episodes=["b"], resize=resize)
        found = clip["image"].numpy()
        assert (found.dtype, found.shape) == (np.uint8, (9, *size, 3))
        pillow = [
            np.asarray(Image.fromarray(frame).resize(size[::-1], Image.Resampling.BILINEAR))
            for frame in full["image"]
        ]
        expected = area_means(full["image"]) if size == HALF else np.stack(pillow)
        difference = np.abs((found - expected.astype(float)) @ weights)
        assert difference.mean() <= 2.5
        assert size != HALF or difference.max() <= (4 if weights.ndim == 1 else 0.5)
        # The source pixels that contain the new centres.
        y, x = (
            [int((i + 0.5) * old / new) for i in range(new)]
            for old, new in zip((HEIGHT, WIDTH), size, strict=True)
        )
        for name in ("depth", "labels", "seg"):
            np.testing.assert_array_equal(clip[name], full[name][:, y][:, :, x])


@pytest.mark.parametrize("codec", ["raw", "jpeg:quality=95", "h264"])
def test_every_path_gives_the_same(home: Path, codec: str) -> None:
    path = dataset_at(home, codec)
    pipe = SeqRecordPipe(path, **CLIPS, resize=SIZES)
    expected = clips_of(pipe)
    assert len(expected) == FRAMES - 2 * len(LENGTHS)
    # Resized frames stay in memory: of raw frames too, which are read again if they are not.
    assert (pipe.stats()["frames_decoded"], pipe.stats()["features_redecoded"]) == (FRAMES, [])
    assert clips_of(pipe) == expected
    assert (pipe.stats()["frames_decoded"], pipe.stats()["features_redecoded"]) == (0, [])
    remote: Any = CountingStorage(LocalStorage(path))
    for location, options in (
        (path, {"frame_transform": dict}),
        (path, {"device": "cpu"}),
        (path, {"memory_limit": "3.2MB", "engine": EngineOptions(num_cursors=1)}),
        (path, {"order": "sequences", "stride": 1}),
        (remote, {}),
        (pipe.dataset, {"resize": None}),
    ):
        given = {**CLIPS, "resize": SIZES, **options}
        assert clips_of(SeqRecordPipe(location, **given)) == expected, options
    stream = SeqRecordIterableDataset(path, **CLIPS, resize=SIZES)
    assert clips_of(DataLoader(stream, batch_size=None, num_workers=1)) == expected
    by_number = SeqRecordMapDataset(path, clip_len=3, resize=SIZES, memory_limit=0)
    assert clips_of(by_number[i] for i in range(len(by_number))) == expected
    episode = by_number.dataset.episodes["a"]
    np.testing.assert_array_equal(episode[4]["image"], by_number[4]["image"][0])
    np.testing.assert_array_equal(episode[4:7]["image"], by_number[4]["image"])


def test_memory_is_that_of_resized_frames(video: Path) -> None:
    names = ["image", "labels"]
    options: dict[str, Any] = {**CLIPS, "features": names}
    sizes = None, dict.fromkeys(names, HALF)
    full, half = (SeqRecordPipe(video, **options, resize=resize) for resize in sizes)
    for pipe in (full, half):
        list(pipe)
    peaks = [pipe.stats()["peak_buffer_bytes"] for pipe in (full, half)]
    assert peaks[0] == 4 * peaks[1] == FRAMES * HEIGHT * WIDTH * 4
    options["memory_limit"] = 2_500_000
    limited = [SeqRecordPipe(video, **options, resize=resize) for resize in sizes]
    for pipe in limited:
        list(pipe)
    assert [pipe.stats()["features_resident"] for pipe in limited] == [[], names]
    assert half.dataset.features["image"].shape == (*HALF, 3)
    assert half.compute_statistics()["image"].count.tolist() == [FRAMES * HALF[0] * HALF[1]] * 3


def test_one_size_for_all_images(raw: Path, tmp_path: Path) -> None:
    """Features of kind image, and no others, by their new names; exports have stored frames."""
    clips = SeqRecordMapDataset(raw, clip_len=1, resize=HALF)
    sizes = {name: clips[0][name].shape[1:3] for name in ("image", "seg", "labels", "depth")}
    assert sizes.pop("image") == HALF
    assert {*sizes.values()} == {(HEIGHT, WIDTH)}
    export.to_files(clips.dataset, ["b"], tmp_path / "files")
    [path, *_] = sorted((tmp_path / "files").rglob("image/*.png"))
    with Image.open(path) as image:
        np.testing.assert_array_equal(image, seqrecord.open(raw).episodes["b"][0]["image"])

    clips = SeqRecordMapDataset(raw, clip_len=1, rename={"image": "rgb"}, resize={"rgb": HALF})
    assert clips[0]["rgb"].shape == (1, *HALF, 3)
    again = SeqRecordMapDataset(clips.dataset, clip_len=1, rename={"rgb": "eye"}, features=["rgb"])
    assert again[0]["eye"].shape == (1, *HALF, 3)
    small = SeqRecordMapDataset(again.dataset, clip_len=1, resize=(8, 8))
    assert small[0]["eye"].shape[1:3] == (8, 8)


def test_transforms_get_resized_frames(video: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        assert frame["image"].shape == (*HALF, 3)
        return {"image": frame["image"], "small": frame["labels"][:2]}

    options: dict[str, Any] = {**CLIPS, "resize": {"image": HALF, "labels": HALF}}
    steps = {"image": RandomCrop((32, 40)), "small": Resize((1, 9))}
    pipe = SeqRecordPipe(video, **options, frame_transform=transform, clip_transform=steps)
    batch = next(iter(pipe))
    assert batch["image"].shape == (4, 3, 32, 40, 3)
    assert batch["small"].shape == (4, 3, 1, 9)
    whole = clips_of(SeqRecordPipe(video, **options), "image")
    for i, place in enumerate(names(batch)):
        top, left, height, width = batch["image_crop"][i].tolist()
        frames = np.frombuffer(whole[place], np.uint8).reshape(3, *HALF, 3)
        window = frames[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(batch["image"][i], window)


def numbers_of(matrices: Any) -> Array:
    """fx, fy, cx and cy of a clip's first camera matrix, of [T, 3, 3]."""
    return np.asarray(matrices)[0, [0, 1, 0, 1], [0, 1, 2, 2]]


def resized_camera(size: tuple[int, int]) -> list[float]:
    """fx, fy, cx and cy of `CAMERA` in frames of this size."""
    along_y, along_x = size[0] / HEIGHT, size[1] / WIDTH
    return [100 * along_x, 90 * along_y, 51 * along_x - 0.5, 40.75 * along_y - 0.5]


def test_intrinsics(raw: Path) -> None:
    """Equal to `Resize`'s; with a crop, the intrinsics of its window in the resized frame."""
    size = (40, 200)
    options: dict[str, Any] = {"clip_len": 1, "features": ["image", "labels"]}
    options["camera"] = Camera(dtype="float64")
    resized = SeqRecordMapDataset(raw, **options, resize=dict.fromkeys(options["features"], size))
    by_hand = resized_camera(size)
    for loader in (resized, SeqRecordMapDataset(raw, **options, clip_transform=Resize(size))):
        np.testing.assert_allclose(numbers_of(loader[0]["image_K"]), by_hand)
    cropped = SeqRecordMapDataset(
        *(raw,), **options, resize=size, clip_transform=RandomCrop((20, 20), features=["image"])
    )[0]
    top, left = cropped["crop"][:2].tolist()
    moved = np.array(by_hand) - [0, 0, left, top]
    np.testing.assert_allclose(numbers_of(cropped["image_K"]), moved)
    assert not any("intrinsics" in name for name in cropped)


def test_intrinsics_of_frames_of_several_sizes(tmp_path: Path) -> None:
    """Scaled if the camera metadata has the image size."""
    sizes, images = {"a": (8, 12), "b": (16, 10)}, {}
    spec = FeatureSpec("image", np.dtype(np.uint8), (None, None, 3), kind="image")
    with SeqRecordWriter(tmp_path / "r", schema=Schema([spec]), codecs={"image": "png"}) as writer:
        for key, (height, width) in sizes.items():
            camera = {**CAMERA, "height": height, "width": width} if key == "a" else CAMERA
            with writer.episode(key, metadata={"camera": camera}) as episode:
                images[key] = pictures(1, 5)[0, :height, :width]
                episode.append({"image": images[key]})
    clips = SeqRecordMapDataset(tmp_path / "r", clip_len=1, resize=(4, 5), camera=True)
    found = clips.__getitems__([0, 1])
    for clip, (key, image) in zip(found, images.items(), strict=True):
        pillow = Image.fromarray(image).resize((5, 4), Image.Resampling.BILINEAR)
        assert np.abs(clip["image"][0].numpy() - np.asarray(pillow, int)).mean() < 8, key
    lengths = numbers_of(found[0]["image_K"])[:2]
    np.testing.assert_allclose(lengths, [100 * 5 / 12, 90 * 4 / 8], rtol=1e-6)
    assert found[1]["image_K_is_missing"].all()
    assert not found[1]["image_K"].any()
    pipe = SeqRecordPipe(tmp_path / "r", clip_len=1, batch_size=2, resize={"image": (4, 5)})
    assert next(iter(pipe))["image"].shape == (2, 1, 4, 5, 3)


@pytest.mark.parametrize("join", ["union", "intersection"])
def test_a_mix_of_sources_of_other_sizes(video: Path, raw: Path, join: Any) -> None:
    some: dict[str, Any] = {"clip_len": 3, "features": ["image", "id"], "camera": True}
    more = {**some, "features": ["image", "id", *(["depth"] if join == "intersection" else [])]}
    sources = {
        "a": SeqRecordPipe(video, **some, resize=HALF),
        "b": SeqRecordPipe(raw, **more, resize={"image": HALF}),
    }
    batch = next(iter(SeqRecordMix(sources, batch_size=6, features=join)))
    assert "depth" not in batch
    assert batch["image"].shape == (6, 3, *HALF, 3)
    assert batch["image_K"].shape == (6, 3, 3, 3)
    assert not batch["image_K_is_missing"].any()
    for name, path in (("a", video), ("b", raw)):
        alone = clips_of(SeqRecordPipe(path, **some, batch_size=1, resize=HALF), "image")
        for i in [i for i, source in enumerate(batch["dataset"]) if source == name]:
            place = batch["episode"][i], int(batch["start"][i])
            assert batch["image"][i].numpy().tobytes() == alone[place]


@pytest.mark.parametrize("channels", [(), (1,), (2,), (4,)])
def test_images_of_other_dtypes(tmp_path: Path, channels: tuple[int, ...]) -> None:
    """Each channel on its own: the last of four is no alpha, by which the others are weighed."""
    values = np.random.default_rng(1).integers(0, 255, (8, 12, *channels))
    expected = values.reshape(4, 2, 6, 2, *channels).mean(axis=(1, 3))
    for dtype in map(np.dtype, ("u1", "u2", "f2", "f4")):
        spec, path = FeatureSpec("image", dtype, values.shape, kind="image"), tmp_path / dtype.name
        writer = SeqRecordWriter(path, schema=Schema([spec]))
        with writer, writer.episode("a") as episode:
            episode.append({"image": values.astype(dtype)})
        found = SeqRecordMapDataset(path, clip_len=1, resize=(4, 6))[0]["image"][0].numpy()
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, atol=0.5 if dtype.kind == "u" else 0.1)


def test_frames_that_lack_a_feature(tmp_path: Path) -> None:
    images = pictures(6, 0)
    writer = SeqRecordWriter(tmp_path / "r", codecs="raw", chunk_frames=3)
    with writer, writer.episode("a") as episode:
        for i, image in enumerate(images):
            episode.append({"id": i} if i in (1, 5) else {"image": image, "id": i})
    latest: dict[str, Any] = {"image": seqrecord.Latest(max_age=3), "id": [0]}
    pipe = SeqRecordPipe(tmp_path / "r", windows=latest, resize=HALF, shuffle=False)
    found = [clip["image"][0].numpy() for clip in pipe]
    expected = [np.rint(area_means(images[[i]])[0]) for i in (0, 0, 2, 3, 4, 4)]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1


def test_in_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos that stay where they are; and LeRobot's class, where nothing is resized by default."""
    install(monkeypatch)
    root = unpack(home, "lerobot_video_v3")
    size = (24, 32)
    pipe = SeqRecordPipe(root, clip_len=2, resize=dict.fromkeys(CAMERAS, size))
    alone = clips_of(pipe, CAMERAS[0])
    with seqrecord.open(root) as dataset:
        stored = dataset.features[CAMERAS[0]].shape
    dataset_of = [LeRobotDataset("a/test", root, resize=given) for given in (None, size)]
    whole, small = (one[0][CAMERAS[0]] for one in dataset_of)
    assert (tuple(whole.shape[1:]), tuple(small.shape[1:])) == (stored[:2], size)
    first = np.frombuffer(alone["episode_000000", 0], np.uint8).reshape(2, *size, 3)[0]
    np.testing.assert_array_equal((small * 255).round().byte().permute(1, 2, 0), first)


@pytest.mark.parametrize("codec", ["raw", "jpeg:quality=95", "h264"])
def test_frames_resized_when_they_are_stored(home: Path, codec: str, tmp_path: Path) -> None:
    """Equal to frames resized on reading; of video about, because FFmpeg resizes it there."""
    path, sizes = dataset_at(home, codec), {"image": (40, 56), "labels": HALF}
    source = seqrecord.open_source(path)
    report = seqrecord.convert(
        source, tmp_path / "r", codecs={"image": "raw"}, resize=sizes, workers=1
    )
    found = seqrecord.open(tmp_path / "r")
    clips = SeqRecordMapDataset(path, clip_len=1, resize=sizes)
    assert (found.features["image"].shape, found.features["image"].codec) == ((40, 56, 3), ())
    assert found.features["seg"].codec == seqrecord.open(path).features["seg"].codec
    for key in LENGTHS:
        frames, expected = found.episodes[key][:], clips.dataset.episodes[key][:]
        for name in expected.keys() - {"image"}:
            np.testing.assert_array_equal(frames[name], expected[name])
        brightness = (frames["image"] - expected["image"].astype(float)) @ [0.299, 0.587, 0.114]
        assert np.abs(brightness).mean() < (2.5 if codec == "h264" else 0.001)
    assert f"image: resized from {HEIGHT} x {WIDTH} to 40 x 56" in report.inventory.notes
    assert found.statistics["image"].count.tolist() == [FRAMES * 40 * 56] * 3
    camera = found.episodes["a"].metadata["camera"]
    for name in sizes:
        values = [camera[name][one] for one in ("fx", "fy", "cx", "cy")]
        np.testing.assert_allclose(values, resized_camera(sizes[name]))
    assert camera["depth"] == CAMERA


def test_originals_resized_when_they_are_stored(raw: Path, home: Path, tmp_path: Path) -> None:
    """Video of LeRobot, also encoded again, and images that would be kept encoded."""
    root = unpack(home, "lerobot_video_v3")
    options: dict[str, Any] = {"resize": {CAMERAS[0]: (16, 24)}, "workers": 1}
    for codec in ("raw", "h264"):
        to = tmp_path / codec
        seqrecord.convert(seqrecord.open_source(root), to, codecs={CAMERAS[0]: codec}, **options)
        frames = seqrecord.open(to).episodes["episode_000002"][:]
        whole = seqrecord.open(root).episodes["episode_000002"][:]
        halved = area_means(whole[CAMERAS[0]])
        assert np.abs(frames[CAMERAS[0]] - halved).mean() < 4
        np.testing.assert_array_equal(frames[CAMERAS[1]], whole[CAMERAS[1]])
    export.to_files(seqrecord.open(raw), ["b"], tmp_path / "files")
    run("write", "--src", tmp_path / "files", "--dst", tmp_path / "r", "--keep-encoded",
        "--resize", f"image={HALF[0]}x{HALF[1]}", "--codec", "raw", "--workers", 1)  # fmt: skip
    found = seqrecord.open(tmp_path / "r")
    assert (found.features["image"].codec, found.features["image"].shape) == ((), (*HALF, 3))
    expected = SeqRecordMapDataset(raw, clip_len=9, episodes=["b"], resize=HALF)[0]["image"]
    np.testing.assert_array_equal(found.episodes["b"][:]["image"], expected)
    for values in (["image"], ["4x5", "image=3x4"], ["image=3x4", "image=3x4"], ["0x4"]):
        resize = [text for value in values for text in ("--resize", value)]
        run("write", "--src", raw, "--dst", tmp_path / "no", *resize, code=2)


def test_intrinsics_per_frame_follow_stored_sizes(tmp_path: Path) -> None:
    """Equal to those of the loaders' `resize=`; chunks of intrinsics alone are not copied. The lens
    stays in the metadata."""
    described: Any = {
        "image": {"group": 0},
        "depth": {"kind": "depth", "unit": "mm", "group": 0},
        "image_intrinsics": {"kind": "intrinsics", "group": 1},
        "depth_intrinsics": {"kind": "intrinsics", "group": 1},
    }
    lens: Any = {"distortion_model": "opencv", "distortion_coefficients": [0.1, 0, 0, 0]}
    metadata: Any = {"camera": {"image": lens, "depth": lens}}
    writer = SeqRecordWriter(tmp_path / "r", features=described)
    with writer, writer.episode("a", metadata=metadata) as episode:
        frame: dict[str, Any] = {}
        for i in range(3):
            frame = {
                "image": np.zeros((8, 12, 3), np.uint8),
                "depth": np.ones((4, 6), np.uint16),
                "image_intrinsics": np.array([9, 8 + i, 5.5, 3], np.float32),
                "depth_intrinsics": np.array([[5 + i, 0, 2.5], [0, 6, 1.5 + i], [0, 0, 1]]),
            }
            episode.append(frame)
    source = seqrecord.open_source(tmp_path / "r")
    every: Any = ({"image": (4, 5)}, {"image": (16, 12), "depth": (3, 5)})
    for path, sizes in zip((tmp_path / "s", tmp_path / "t"), every, strict=True):
        seqrecord.convert(source, path, resize=sizes, workers=1)
        [found] = SeqRecordPipe(path, clip_len=3)
        [expected] = SeqRecordPipe(tmp_path / "r", clip_len=3, resize=sizes)
        for name in ("image_intrinsics", "depth_intrinsics"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
        dataset = seqrecord.open(path)
        assert dataset.episodes["a"].metadata["camera"] == metadata["camera"]
        mean = found["image_intrinsics"].mean(0)
        np.testing.assert_allclose(dataset.statistics["image_intrinsics"].mean, mean, rtol=1e-6)
    with pytest.raises(SchemaError, match="other features"):
        seqrecord.convert(
            source, tmp_path / "s", resize={"image": (2, 2)}, workers=1, mode="append"
        )
    only = seqrecord.open_source(tmp_path / "r", features=["depth", "image_intrinsics"])
    with pytest.raises(ClipError, match="image that the loader does not read"):
        seqrecord.convert(only, tmp_path / "n", resize={"depth": (2, 2)})
    described = {"image": {"shape": (None, None, 3)}, "K": {"kind": "intrinsics"}}
    writer = SeqRecordWriter(tmp_path / "v", features=described)
    with writer, writer.episode("a") as episode:
        episode.append({"image": frame["image"], "K": frame["image_intrinsics"]})
    with pytest.raises(SchemaError, match="whose size varies; feature: K"):
        seqrecord.convert(seqrecord.open_source(tmp_path / "v"), tmp_path / "w", resize=(4, 4))


def test_a_state_of_other_sizes(video: Path) -> None:
    state = SeqRecordPipe(video, **CLIPS, resize=SIZES).state_dict()
    with pytest.raises(StateError, match="other settings: shapes"):
        SeqRecordPipe(video, **CLIPS).load_state_dict(state)
    assert len(digests(resumed(SeqRecordPipe(video, **CLIPS, resize=SIZES), state)))
    engine = EngineOptions(video_decoder="torchcodec")
    with pytest.raises(ClipError, match="resize are for frames of the host"):
        SeqRecordPipe(video, **CLIPS, resize=HALF, device="cpu", engine=engine)


def test_errors(tmp_path: Path) -> None:
    kinds = {"image": (), "flow": (2,), "disparity": (), "precise": (), "pose": ()}
    dtypes = {"image": "u1", "precise": "f8"}
    specs = [
        FeatureSpec(
            name,
            np.dtype(dtypes.get(name, "f4")),
            (4, 4, *more),
            kind="image" if name == "precise" else name,
        )
        for name, more in kinds.items()
    ]
    specs += [FeatureSpec("id", np.dtype("i8"), ()), FeatureSpec("depth", np.dtype("f4"), (4, 4))]
    with SeqRecordWriter(tmp_path, schema=Schema(specs)) as writer, writer.episode("a") as episode:
        episode.append({s.name: np.zeros([n or 0 for n in s.shape], s.dtype) for s in specs})
    errors: list[tuple[Any, tuple[str, ...]]] = [
        ({"nose": HALF}, ("not read", "nose", "some of image, flow")),
        ({"id": HALF}, ("id", "[height, width, …]", "int64 []")),
        ({"flow": HALF}, ("flow", "Resize((48, 56))", "kind flow")),
        ({"disparity": HALF}, ("disparity", "Resize((48, 56))", "kind disparity")),
        ({"precise": HALF}, ("precise", "up to 16 bits", "float64")),
        ({"pose": HALF}, ("pose", "kind image, depth", "kind pose")),
        ({"image": (0, 4)}, ("resize of image", "{'image': (H, W)}", "(0, 4)")),
        ({"image": (True, 4)}, ("resize of image", "{'image': (H, W)}", "(True, 4)")),
        ({"image": (1 << 20, 1 << 20)}, ("too large", "image")),
        ({}, ("resize", "{}")),
        ({3: HALF}, ("resize", "by feature")),
        ("large", ("resize=(H, W)", "large")),
        ((2, 3, 4), ("resize", "(2, 3, 4)")),
    ]
    for resize, texts in errors:
        with pytest.raises(seqrecord.SeqRecordError) as caught:
            SeqRecordPipe(tmp_path, clip_len=1, resize=resize)
        assert [text for text in texts if text not in str(caught.value)] == []


SIZED: dict[str, tuple[str, Callable[[Path, Any], Any]]] = {
    "pipe": ("resize=(H, W)", lambda path, size: SeqRecordPipe(path, clip_len=1, resize=size)),
    "map": ("resize=(H, W)", lambda path, size: SeqRecordMapDataset(path, clip_len=1, resize=size)),
    "feature": (
        "resize={'image': (H, W)}",
        lambda path, size: SeqRecordIterableDataset(path, clip_len=1, resize={"image": size}),
    ),
    "dataset": ("resize=(H, W)", lambda path, size: seqrecord.open(path).resized(size)),
    "convert": (
        "resize=(H, W)",
        lambda path, size: seqrecord.convert(
            seqrecord.open_source(path), path.with_name("small"), resize={"image": size}
        ),
    ),
    "step": ("Resize((H, W))", lambda _, size: Resize(size)),
    "step of a feature": ("Resize((H, W))", lambda _, size: Resize(size, features=["image"])),
}


@pytest.mark.parametrize("case", SIZED)
def test_one_number_is_refused(raw: Path, case: str) -> None:
    """It made squares, and is the shorter edge elsewhere. Crops to squares distort nothing."""
    form, make = SIZED[case]
    for size in (48, np.int64(48)):
        with pytest.raises(ClipError) as caught:
            make(raw, size)
        assert form in str(caught.value)
        assert "got: " in str(caught.value)
        assert "48" in str(caught.value)
    assert RandomCrop(48).size(HEIGHT, WIDTH) == (48, 48)


def test_one_number_is_refused_in_texts(raw: Path, tmp_path: Path) -> None:
    """In mix files, for all sources or one, and on the command line."""
    for everywhere, source, form in (
        ("resize: 48", "", "resize=(H, W), in YAML [H, W]"),
        ("", ", resize: {image: 48}", "resize={'image': (H, W)}, in YAML [H, W]"),
    ):
        text = f"sources: {{a: {{location: '{raw}', clip_len: 2{source}}}}}\n{everywhere}\n"
        (tmp_path / "mix.yaml").write_text(text)
        with pytest.raises(ClipError) as caught:
            SeqRecordMix.from_file(tmp_path / "mix.yaml", batch_size=2)
        assert form in str(caught.value)
    assert "in YAML [H, W]" in fail("bench", raw, "--loader", "resize=48", code=2)
    write = "write", "--src", raw, "--dst", tmp_path / "small", "--resize"
    for value in ("48", "image=48"):
        assert "HEIGHTxWIDTH" in fail(*write, value, code=2)
