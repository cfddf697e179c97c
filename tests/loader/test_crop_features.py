"""Kinds, never shapes, decide which features crops, flips and resizing change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import CenterCrop, ClipError, FeatureSpec, SeqRecordPipe
from tests.kit.datasets import write_dataset

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]

OTHER_KINDS = ("pose", "state", "action", "imu", "points", "intrinsics", "timestamp", "audio")
PIXEL_KINDS = ("image", "depth", "disparity", "mask", "segmentation", "normals", "flow")
STEPS: dict[str, Any] = {
    "center": CenterCrop((2, 2)),
    "random": seqrecord.RandomCrop((2, 2)),
    "resize": seqrecord.Resize((5, 6)),
    "resized crop": seqrecord.RandomResizedCrop((3, 2)),
    "batch": seqrecord.BatchResize([(4, 4), (6, 8)]),
    "flip": [CenterCrop((3, 2)), seqrecord.HorizontalFlip(1.0)],
}
LENGTH = 3


def spec_of(name: str, shape: Shape, kind: str | None) -> FeatureSpec:
    dtype = "u1" if kind in ("image", "mask", "segmentation") else "f4"
    return FeatureSpec(name, np.dtype(dtype), shape, kind=kind)


def value_of(spec: FeatureSpec, size: tuple[int, int], frame: int) -> Array:
    """Numbers that differ in all elements; variable sides are those of `size`."""
    sides = [size[axis] if n is None else n for axis, n in enumerate(spec.shape)]
    numbers = np.arange(int(np.prod(sides))).reshape(sides) + 7 * frame
    return (numbers % 251).astype(spec.dtype)


def write(path: Path, specs: list[FeatureSpec], sizes: list[tuple[int, int]]) -> None:
    frames = {
        str(key): [{s.name: value_of(s, size, number) for s in specs} for number in range(LENGTH)]
        for key, size in enumerate(sizes)
    }
    write_dataset(path, frames, schema=seqrecord.Schema(specs), codecs="raw")


def batches(path: Path, loader: str, step: Any, **options: Any) -> list[dict[str, Any]]:
    """Batches of one clip, by each kind of loader."""
    settings: dict[str, Any] = {"clip_len": 1, "clip_transform": step, **options}
    if loader == "map":
        clips = seqrecord.SeqRecordMapDataset(path, **settings)
        return [seqrecord.collate([clips[i]]) for i in range(len(clips))]
    if loader == "mix":
        sources = {"a": seqrecord.SeqRecordIterableDataset(path, **settings)}
        return [*seqrecord.SeqRecordMix(sources, batch_size=1)]
    device = "cpu" if loader == "device" else None
    return [*SeqRecordPipe(path, batch_size=1, device=device, **settings)]


def loaders_of(name: str) -> list[str]:
    return ["pipe", "mix", "device"] + ([] if name == "batch" else ["map"])


def first_frame(batch: dict[str, Any], name: str) -> Array:
    found: Array = np.asarray(batch[name][0][0])
    return found


def _cases() -> Iterator[Any]:
    """All steps and forms of images; the fast run has two."""
    forms = [(12, 16), (None, 16), (12, None), (None, None)]
    for name, sides in itertools.product(STEPS, forms):
        is_fast = (name, sides) in (("random", (None, 16)), ("flip", (12, 16)))
        yield pytest.param(name, sides, marks=() if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(("name", "sides"), list(_cases()))
def test_images_define_the_window(tmp_path: Path, name: str, sides: Any) -> None:
    """Of each kind one feature of the window's size, and one as small as a pose."""
    specs = [spec_of("image", (*sides, 3), "image"), spec_of("plain", (*sides, 2), None)]
    channels = {"normals": (3,), "flow": (2,), "image": (3,)}
    specs += [
        spec_of(f"the_{kind}", (*sides, *channels.get(kind, ())), kind) for kind in PIXEL_KINDS
    ]
    small = {"intrinsics": (3, 3)}
    specs += [spec_of(kind, small.get(kind, (4, 4)), kind) for kind in OTHER_KINDS]
    specs += [spec_of(f"large_{kind}", sides, kind) for kind in OTHER_KINDS if kind != "intrinsics"]
    specs += [spec_of("tiny", (4, 4), None)]
    write(tmp_path / "r", specs, [(12, 16), (12, 16)])
    following = {"image", "plain", *(f"the_{kind}" for kind in PIXEL_KINDS)}
    for loader in loaders_of(name):
        for batch in batches(tmp_path / "r", loader, STEPS[name]):
            size = batch["image"].shape[2:4]
            for spec in specs:
                got, frame = first_frame(batch, spec.name), int(batch["start"][0])
                if spec.name in following:
                    assert got.shape[:2] == size, spec.name
                    continue
                want = value_of(spec, (12, 16), frame)
                if spec.kind == "intrinsics":  # these follow their image in their own way
                    assert got.shape == (3, 3)
                    continue
                assert np.array_equal(got, want), (loader, spec)


@pytest.mark.slow
@given(
    kind=st.sampled_from(OTHER_KINDS),
    shape=st.lists(st.sampled_from([2, 3, 4, 12, 16]), min_size=2, max_size=3),
    step=st.sampled_from([*STEPS]),
    is_image=st.booleans(),
    sides=st.sampled_from([(12, 16), (None, 16), (None, None)]),
)
def test_other_kinds_never_change(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    shape: list[int],
    step: str,
    is_image: bool,
    sides: Any,
) -> None:
    """Whatever their shape, and whatever else is read."""
    if kind == "intrinsics":
        shape = [3, 3]
    path = tmp_path_factory.mktemp("kinds") / "r"
    specs = [spec_of("image", (*sides, 3), "image"), spec_of("other", (*shape,), kind)]
    write(path, specs, [(12, 16)])
    names = ["image", "other"] if is_image else ["other"]
    if not is_image:
        with pytest.raises(ClipError, match="features="):
            SeqRecordPipe(path, clip_len=1, features=names, clip_transform=STEPS[step])
        return
    for loader in ("pipe", "device"):
        for batch in batches(path, loader, STEPS[step], features=names):
            if kind != "intrinsics":
                want = value_of(specs[1], (12, 16), int(batch["start"][0]))
                assert np.array_equal(first_frame(batch, "other"), want)


def test_other_pixel_kinds_define_the_window_without_images(tmp_path: Path) -> None:
    specs = [
        spec_of("depth", (12, 16), None),  # by its name
        spec_of("labels", (12, 16), "segmentation"),
        spec_of("confidence", (12, 16), None),
        spec_of("pose", (4, 4), None),
    ]
    write(tmp_path / "r", specs, [(12, 16)])
    (batch, *_) = batches(tmp_path / "r", "pipe", CenterCrop((3, 3)))
    shapes = {spec.name: first_frame(batch, spec.name).shape for spec in specs}
    assert shapes == {"depth": (3, 3), "confidence": (3, 3), "labels": (3, 3), "pose": (4, 4)}
    with pytest.raises(ClipError, match="features="):  # nothing says that these are pixels
        batches(tmp_path / "r", "pipe", CenterCrop(3), features=["confidence", "pose"])
    (batch, *_) = batches(
        tmp_path / "r",
        "pipe",
        CenterCrop((3, 3), features=["confidence"]),
        features=["confidence", "pose"],
    )
    assert first_frame(batch, "confidence").shape == (3, 3)
    assert first_frame(batch, "pose").shape == (4, 4)


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [("rgb", "f4", (12, 16, 3)), ("colours", "u1", (12, 16, 3)), ("image", "u2", (12, 16))],
)
def test_images_without_a_kind_define_the_window(
    tmp_path: Path, name: str, dtype: str, shape: Shape
) -> None:
    """They are refused beside a larger depth map, which would define it otherwise."""
    specs = [FeatureSpec(name, np.dtype(dtype), shape), spec_of("depth", (24, 32), "depth")]
    write(tmp_path / "r", specs, [(12, 16)])
    with pytest.raises(ClipError, match=f"moves {name}, and not depth"):
        batches(tmp_path / "r", "pipe", CenterCrop((3, 3)))


def test_requested_features_have_pixels(tmp_path: Path) -> None:
    specs = [spec_of("image", (4, 4, 3), "image"), spec_of("points", (4, 4, 3), "points")]
    specs += [spec_of(kind, (4, 4), kind) for kind in ("pose", "state", "action", "imu")]
    specs += [spec_of("K", (3, 3), "intrinsics")]
    write(tmp_path / "r", specs, [(4, 4)])
    for kind in ("pose", "state", "action", "imu", "K"):
        for step in (CenterCrop(2, features=[kind]), {kind: CenterCrop(2)}):
            with pytest.raises(ClipError, match="has no pixels") as caught:
                SeqRecordPipe(tmp_path / "r", clip_len=1, clip_transform=step)
            assert caught.value.feature == kind
    # An organised point cloud: by its name only.
    (batch, *_) = batches(tmp_path / "r", "pipe", CenterCrop(2, features=["image", "points"]))
    assert first_frame(batch, "points").shape == (2, 2, 3)


def test_variable_images(tmp_path: Path) -> None:
    """One variable side is enough; the others of the same size follow, each in its own place."""
    sizes = [(10, 16), (14, 16)]
    specs = [
        spec_of("image", (None, 16, 3), "image"),
        spec_of("depth", (None, None), "depth"),
        spec_of("conf", (None, 16), None),
        spec_of("points", (None, 3), None),
    ]
    write(tmp_path / "r", specs, sizes)
    for loader in loaders_of("random"):
        for batch in batches(tmp_path / "r", loader, seqrecord.RandomCrop((8, 9))):
            top, left = batch["crop"][0, :2].tolist()
            size, frame = sizes[int(batch["episode"][0])], int(batch["start"][0])
            for spec in specs[:3]:
                whole = value_of(spec, size, frame)
                want = whole[top : top + 8, left : left + 9]
                assert np.array_equal(first_frame(batch, spec.name), want), (loader, spec)
            assert np.array_equal(first_frame(batch, "points"), value_of(specs[3], size, frame))


def test_rows_of_a_variable_number_without_a_kind(tmp_path: Path) -> None:
    """They may be pixels: an error names their kind, which decides."""
    for kind in (None, "state"):
        path = tmp_path / str(kind)
        specs = [spec_of("image", (None, 16, 3), "image"), spec_of("tokens", (None, 16), kind)]
        with (
            seqrecord.SeqRecordWriter(path, schema=seqrecord.Schema(specs)) as writer,
            writer.episode("a") as episode,
        ):
            for length in range(1, 4):
                frame = {"tokens": value_of(specs[1], (length, 16), 0)}
                episode.append({"image": value_of(specs[0], (12, 16), 0), **frame})
        if kind is None:
            with pytest.raises(ClipError, match=r"its kind.*features=") as caught:
                batches(path, "pipe", CenterCrop(3))
            assert caught.value.feature == "tokens"
        else:
            assert first_frame(batches(path, "pipe", CenterCrop(3))[1], "tokens").shape[1] == 16


def test_flips_of_normals_without_channels(tmp_path: Path) -> None:
    """Angles: the sign of no column changes."""
    specs = [spec_of("angle", (12, 16), "normals")]
    write(tmp_path / "r", specs, [(12, 16)])
    (batch, *_) = batches(tmp_path / "r", "pipe", seqrecord.HorizontalFlip(1))
    want = value_of(specs[0], (12, 16), int(batch["start"][0]))[:, ::-1]
    assert np.array_equal(first_frame(batch, "angle"), want)


def test_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    forms: list[Shape] = [(12, 16, 3), (12, 18, 3), (None, 16, 3), (None, 18, 3), (None, None, 3)]
    for number, (one, other) in enumerate(itertools.combinations(forms, 2)):
        path = tmp_path / str(number)
        specs = [spec_of("a", one, "image"), spec_of("b", other, "image")]
        write(path, specs, [(12, 18)])
        if None in one and None in other and {one[1], other[1]} != {16, 18}:
            pipe = SeqRecordPipe(path, clip_len=1, batch_size=1, clip_transform=CenterCrop(3))
            frames = {tuple(one), tuple(other)}
            if (None, 16, 3) in frames:
                with pytest.raises(ClipError, match="differ in size"):
                    list(pipe)
            else:
                assert {b["a"].shape for b in pipe} == {(1, 1, 3, 3, 3)}
        else:
            with pytest.raises(ClipError, match="images of different sizes"):
                SeqRecordPipe(path, clip_len=1, clip_transform=CenterCrop(3))


def test_features_chosen_by_their_size_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    specs = [
        spec_of("image", (12, 16, 3), "image"),
        spec_of("confidence", (12, 16), None),
        spec_of("heat", (12, 16), "thermal"),
        spec_of("cloud", (12, 16, 3), "points"),
        spec_of("seen_mask", (12, 16), None),
        spec_of("pose", (4, 4), "pose"),
    ]
    write(tmp_path / "r", specs, [(12, 16)])
    for _ in range(2):
        SeqRecordPipe(tmp_path / "r", clip_len=1, clip_transform=CenterCrop(3))
    (message,) = caplog.messages
    assert "confidence has no kind" in message
    assert "heat has kind thermal" in message
    assert "cloud is unchanged" in message
    assert "seen_mask" not in message
    assert "pose" not in message
    caplog.clear()
    step = CenterCrop(3, features=["image", "confidence"])
    SeqRecordPipe(tmp_path / "r", clip_len=1, clip_transform=step)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("name", "shape", "kind", "resize"),
    [
        ("depth", (6, 8), "depth", {"depth": (12, 16)}),
        ("flow", (6, 8, 2), "flow", {"image": (6, 8)}),  # `resize=` takes no flow
        ("disparity", (24, 32), "disparity", {"image": (24, 32)}),
        ("object_mask", (24, 32), None, {"object_mask": (12, 16)}),  # by its name
        ("normals", (12, 8, 3), "normals", {"normals": (12, 16)}),
    ],
)
@pytest.mark.parametrize("step", [CenterCrop, seqrecord.Resize, seqrecord.HorizontalFlip])
def test_maps_of_another_size_are_refused(
    tmp_path: Path, name: str, shape: Shape, kind: str | None, resize: Any, step: Any
) -> None:
    """An image would move without its depth, flow or mask. Both ways of the message work."""
    write(
        tmp_path / "r",
        [
            spec_of("image", (12, 16, 3), "image"),
            spec_of("follower", (12, 16), "depth"),
            spec_of(name, shape, kind),
        ],
        [(12, 16)],
    )
    if "image" in resize:
        resize = {"image": shape[:2], "follower": shape[:2]}
    argument = {CenterCrop: 3, seqrecord.Resize: (6, 8), seqrecord.HorizontalFlip: 1}[step]
    with pytest.raises(ClipError, match=f"moves image, and not {name}: their sizes") as caught:
        batches(tmp_path / "r", "pipe", step(argument))
    assert f"resize={resize} " in str(caught.value)
    assert "features=['image', 'follower']" in str(caught.value)
    (batch, *_) = batches(tmp_path / "r", "pipe", step(argument), resize=resize)
    assert batch["image"].shape[2:4] == batch["follower"].shape[2:4] == batch[name].shape[2:4]
    (batch, *_) = batches(tmp_path / "r", "pipe", step(argument, features=["image", "follower"]))
    assert batch["image"].shape[2:4] == batch["follower"].shape[2:4]
    spec = spec_of(name, shape, kind)
    want = value_of(spec, (12, 16), int(batch["start"][0]))
    assert np.array_equal(first_frame(batch, name), want)


def test_maps_of_other_forms_are_refused(tmp_path: Path) -> None:
    """Sizes that vary, and maps without any image."""
    forms: list[tuple[FeatureSpec, FeatureSpec, str]] = [
        (spec_of("image", (None, None, 3), "image"), spec_of("depth", (6, 8), "depth"), "{'depth'"),
        (spec_of("image", (12, 16, 3), "image"), spec_of("depth", (None, 8), "depth"), "{'depth'"),
        (spec_of("depth", (12, 16), "depth"), spec_of("mask", (6, 8), "mask"), "{'mask': (12, 16)"),
        (
            spec_of("image", (None, None, 3), "image"),
            spec_of("flow", (6, 8, 2), "flow"),
            "{'image'",
        ),
    ]
    for number, (source, other, resize) in enumerate(forms):
        path = tmp_path / str(number)
        write(path, [source, other], [(12, 16)])
        with pytest.raises(ClipError, match=f"moves {source.name}, and not {other.name}") as caught:
            SeqRecordPipe(path, clip_len=1, clip_transform=CenterCrop(3))
        # A size that varies is no size to resize to.
        is_named = None not in (source.shape if other.kind != "flow" else other.shape)
        assert (f"resize={resize}" in str(caught.value)) == is_named


def test_masks_of_padded_images_follow(tmp_path: Path) -> None:
    specs = [spec_of("image", (None, None, 3), "image"), spec_of("state", (None, 2), "state")]
    write(tmp_path / "r", specs, [(10, 12), (8, 16)])
    options: dict[str, Any] = {"ragged": {"image": (12, 16), "state": 12}}
    for step in (CenterCrop((12, 4)), CenterCrop((12, 4), features=["image"])):
        for batch in batches(tmp_path / "r", "pipe", step, **options):
            height, width = [(10, 12), (8, 16)][int(batch["episode"][0])]
            mask = np.zeros((12, 16), bool)
            mask[:height, :width] = True
            assert np.array_equal(first_frame(batch, "image_mask"), mask[:, 6:10])
            assert first_frame(batch, "state").shape == (12, 2)
            assert first_frame(batch, "state_mask").shape == (12,)
    one_side = [spec_of("image", (None, 16, 3), "image")]
    write(tmp_path / "one", one_side, [(10, 16), (8, 16)])
    with pytest.raises(ClipError, match="padding of one side"):
        batches(tmp_path / "one", "pipe", CenterCrop(4), ragged={"image": 10})
