from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import SeqRecordWriter, errors
from seqrecord.codecs import CODEC_NAMES
from seqrecord.schema import EncodedImage, FeatureSpec, Schema
from tests.made_source import made_frame


def write(destination: Any, episodes: dict[str, int], **options: Any) -> str:
    """Made frames in small chunks and files; returns the fingerprint."""
    options = {"chunk_frames": 4, "max_file_size": 20_000, **options}
    with SeqRecordWriter(destination, **options) as writer:
        for key, length in episodes.items():
            with writer.episode(key) as episode:
                for i in range(length):
                    episode.append(made_frame(key, i))
    with seqrecord.open(destination) as dataset:
        return dataset.fingerprint


def check(destination: Any, episodes: dict[str, int]) -> None:
    with seqrecord.open(destination) as dataset:
        assert {key: len(e) for key, e in dataset.episodes.items()} == episodes
        for key, episode in dataset.episodes.items():
            for i in range(len(episode)):
                for name, array in made_frame(key, i).items():
                    np.testing.assert_array_equal(episode[i][name], array, strict=True)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


EPISODES = {"a": 9, "b/c": 1, "d": 30}


def test_a_dataset_in_memory() -> None:
    write("memory://writer/d", EPISODES)
    check("memory://writer/d", EPISODES)
    write("memory://writer/d", {"more": 3}, mode="append")
    check("memory://writer/d", {**EPISODES, "more": 3})


def test_a_finished_dataset_is_not_written_over(tmp_path: Path) -> None:
    before = write(tmp_path, {"a": 3})
    with pytest.raises(errors.DestinationError, match="--append"):
        SeqRecordWriter(tmp_path)
    assert write(tmp_path, {}, mode="append") == before


def test_the_log_says_when_a_commit_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of many episodes it takes long."""
    with caplog.at_level("INFO"), SeqRecordWriter(tmp_path / "records") as writer:
        for key in "ab":
            with writer.episode(key) as episode:
                episode.append({"x": np.float32(0)})
        assert "committing" not in caplog.text
    assert "records: committing 2 episodes" in caplog.text


def test_append_needs_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(errors.DestinationError, match="no dataset to append to"):
        SeqRecordWriter(tmp_path / "none", mode="append")
    assert not (tmp_path / "none").exists()


def test_leftovers_of_an_interrupted_append_do_not_hurt_the_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"a": 5})
    writer = SeqRecordWriter(tmp_path, mode="append", chunk_frames=4)
    with writer.episode("b") as episode:
        episode.append(made_frame("b", 0))
    writer.abort()
    check(tmp_path, {"a": 5})
    with caplog.at_level("WARNING"):
        write(tmp_path, {"c": 2}, mode="append")  # leaves them alone
    assert "ignored 1 record file of another writer" in caplog.text
    check(tmp_path, {"a": 5, "c": 2})
    SeqRecordWriter(tmp_path, mode="resume").close()
    check(tmp_path, {"a": 5, "b": 1, "c": 2})


def test_no_episodes_are_no_dataset(tmp_path: Path) -> None:
    with (
        pytest.raises(errors.DestinationError, match="no episode"),
        SeqRecordWriter(tmp_path / "d"),
    ):
        pass
    assert not (tmp_path / "d").exists()


# Episodes


def test_one_episode_at_a_time_and_each_key_once(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))
            with pytest.raises(errors.DestinationError, match="a has not ended"):
                writer.episode("b")
        with pytest.raises(errors.DestinationError, match=r"exists already.*completed_episodes"):
            writer.episode("a")
        with pytest.raises(errors.DestinationError, match="has ended"):
            episode.append(made_frame("a", 1))
        with pytest.raises(errors.FormatError, match="key"):
            writer.episode("../b")
        with pytest.raises(errors.FormatError, match="JSON"):
            writer.episode("b", metadata={"x": object()})
    check(tmp_path, {"a": 1})


def test_after_close_nothing_goes(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))
        manifest = writer.close()
        assert manifest.num_frames == 1
    for action in (writer.close, lambda: writer.episode("b")):
        with pytest.raises(errors.DestinationError, match="closed"):
            action()
    writer.abort()
    check(tmp_path, {"a": 1})


def test_an_episode_may_end_early_by_hand(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=1) as writer:
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))
            episode.close()
        with writer.episode("b") as episode:
            episode.append(made_frame("b", 0))
            episode.append(made_frame("b", 1))
            episode.abort()
        with writer.episode("b") as episode:
            episode.append(made_frame("b", 0))
    check(tmp_path, {"a": 1, "b": 1})


def test_an_open_episode_is_never_lost_in_silence(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path)
    with writer.episode("a") as episode:
        episode.append(made_frame("a", 0))
    writer.episode("b").append(made_frame("b", 0))
    with pytest.raises(errors.DestinationError, match="in the middle of an episode"):
        writer.close()
    SeqRecordWriter(tmp_path, mode="resume").close()
    check(tmp_path, {"a": 1})


@pytest.mark.parametrize("known", [True, False])
def test_a_refused_frame_gives_up_its_episode(tmp_path: Path, known: bool) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=4) as writer:
        if known:
            with writer.episode("a") as episode:
                episode.append(made_frame("a", 0))
        episode = writer.episode("b")
        for i in range(40):
            episode.append(made_frame("b", i))
        with pytest.raises(errors.FrameError, match="episode: b; feature: image; frame: 40"):
            episode.append({"image": np.zeros((24, 32, 3), np.uint16)})
        with pytest.raises(errors.DestinationError, match="dropped after an error"):
            episode.append(made_frame("b", 40))
        with pytest.raises(errors.DestinationError, match="dropped after an error"):
            episode.close()
        with writer.episode("b") as episode:
            episode.append(made_frame("b", 0))
    check(tmp_path, {"a": 1, "b": 1} if known else {"b": 1})


def test_a_swallowed_error_does_not_shorten_an_episode(tmp_path: Path) -> None:
    def swallow() -> None:
        with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
            for i in range(40):
                episode.append(made_frame("a", i))
            with pytest.raises(errors.FrameError):
                episode.append({"image": np.zeros(3)})

    with pytest.raises(errors.DestinationError, match="dropped after an error"):
        swallow()
    with pytest.raises(errors.NotFoundError):
        seqrecord.open(tmp_path)


def test_an_episode_without_frames_is_refused(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        with pytest.raises(errors.FrameError, match="has no frames"), writer.episode("a"):
            pass
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))
    check(tmp_path, {"a": 1})


# Frames


@pytest.mark.parametrize("codec", ["raw", "balanced"])
@pytest.mark.parametrize("kind", ["writer", "recorder"])
def test_masks_as_pillow_gives_them(tmp_path: Path, kind: str, codec: str) -> None:
    """Its arrays of images of one bit have bytes 0 and 255."""
    mask = np.random.default_rng(0).integers(0, 2, (6, 9)).astype(bool)
    array = np.asarray(Image.fromarray(mask))
    assert array.view(np.uint8).max() == 255
    make: Any = SeqRecordWriter if kind == "writer" else seqrecord.SeqRecordRecorder
    said = {"mask": {"kind": "mask"}}
    with make(tmp_path, codecs=codec, features=said) as writer, writer.episode("a") as episode:
        for item in (array, array.T[:9, :6].T, mask):
            episode.append({"mask": item})
    with seqrecord.open(tmp_path) as dataset:
        for stored in dataset.episodes["a"][:]["mask"]:
            np.testing.assert_array_equal(stored.view(np.uint8), mask)
        statistics = dataset.statistics["mask"]
        assert [*statistics.max, *statistics.mean] == [1, pytest.approx(mask.mean())]


@pytest.mark.parametrize("odd", [2, 31, 40])
@pytest.mark.parametrize("kind", ["writer", "recorder"])
def test_one_odd_frame_is_refused_wherever_it_comes(tmp_path: Path, kind: str, odd: int) -> None:
    make: Any = SeqRecordWriter if kind == "writer" else seqrecord.SeqRecordRecorder

    def write(path: Path, **more: Any) -> None:
        with make(path, **more) as writer, writer.episode("a") as episode:
            for number in range(45):
                episode.append({"x": np.zeros((4 - (number == odd), 3))})

    with pytest.raises(errors.FrameError, match="pass schema=") as caught:
        write(tmp_path / "a")
    assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("a", odd, "x")
    write(tmp_path / "b", features={"x": {"shape": (None, 3)}})
    with seqrecord.open(tmp_path / "b") as dataset:
        assert str(dataset.features["x"]) == "x: float64 [?, 3]"
        assert dataset.episodes["a"][odd]["x"].shape == (3, 3)


def test_the_schema_is_that_of_the_first_chunk(tmp_path: Path) -> None:
    said = {"note": {"shape": (None,)}}
    with (
        SeqRecordWriter(tmp_path, codecs="raw", features=said) as writer,
        writer.episode("a") as episode,
    ):
        episode.append({"image": np.zeros((4, 5), np.uint8)})
        episode.append({"image": np.ones((4, 5), np.uint8), "pose": np.arange(7.0)})
        episode.append({"note": np.zeros(3, np.uint8)})
        episode.append({"note": np.zeros(5, np.uint8), "step": 4})
        assert writer.schema is None
    with seqrecord.open(tmp_path) as dataset:
        assert [str(spec) for spec in dataset.features.values()] == [
            "image: uint8 [4, 5]",
            "pose: float64 [7]",
            "note: uint8 [?]",
            "step: int64 []",
        ]
        episode_read = dataset.episodes["a"]
        assert episode_read.present("pose").tolist() == [False, True, False, False]
        assert [sorted(episode_read[i]) for i in range(4)] == [
            ["image"],
            ["image", "pose"],
            ["note"],
            ["note", "step"],
        ]
        assert episode_read[3]["step"] == 4


def test_a_feature_that_comes_later_is_refused(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        episode = writer.episode("a")
        for _ in range(32):
            episode.append({"x": np.zeros(3)})
        assert writer.schema is not None
        with pytest.raises(errors.FrameError, match="pass a schema"):
            episode.append({"x": np.zeros(3), "y": np.zeros(3)})
        writer.abort()


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (np.zeros((4, 5), np.float32), r"frame: 1; expected: x: float64 \[4, 5\]; got: float32"),
        (np.zeros((4, 5, 1)), r"frame: 1; .* got: float64 \[4, 5, 1\]"),
        ("text", "frame: 1"),
    ],
)
def test_frames_that_contradict_each_other(tmp_path: Path, second: Any, says: str) -> None:
    writer = SeqRecordWriter(tmp_path / "d")
    episode = writer.episode("some/key")
    episode.append({"x": np.zeros((4, 5))})
    episode.append({"x": second})
    with pytest.raises(errors.FrameError, match=says) as caught:
        episode.close()
    assert caught.value.episode == "some/key"
    writer.abort()
    assert not (tmp_path / "d/manifest.json").exists()


@pytest.mark.parametrize("item", [np.zeros((0, 4)), np.array(["a"]), np.array(None), ["text"]])
def test_what_no_feature_can_be_names_feature_and_episode(tmp_path: Path, item: Any) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        episode = writer.episode("some/key")
        episode.append({"x": item})
        with pytest.raises(errors.SchemaError, match="feature: x") as caught:
            episode.close()
        assert caught.value.episode == "some/key"
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))


@pytest.mark.parametrize("given", [True, False])
def test_arrays_may_be_filled_again(tmp_path: Path, given: bool) -> None:
    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (3, 4))]) if given else None
    array = np.empty((3, 4), np.float32)
    with (
        SeqRecordWriter(tmp_path, schema=schema, codecs="raw") as writer,
        writer.episode("a") as episode,
    ):
        for i in range(40):
            array[:] = i
            episode.append({"x": array})
    with seqrecord.open(tmp_path) as dataset:
        x = dataset.episodes["a"][:]["x"]
    assert [float(x[i].max()) for i in range(40)] == list(range(40))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
    ],
)
@pytest.mark.parametrize("codec", ["raw", "balanced"])
def test_layout_of_the_input_does_not_matter(
    tmp_path: Path, change: Callable[[Any], Any], codec: str
) -> None:
    array = np.random.default_rng(0).normal(size=(6, 8)).astype("<f4")
    with SeqRecordWriter(tmp_path, codecs=codec) as writer, writer.episode("a") as episode:
        for _ in range(33):
            episode.append({"x": change(array)})
    with seqrecord.open(tmp_path) as dataset:
        got = dataset.episodes["a"][:]["x"]
        assert isinstance(got, np.ndarray)
        assert got.dtype == "<f4"
        assert all((frame == array).all() for frame in got)


SIZES = [{"max_file_size": 0}, {"max_file_size": "0.3 B"}, {"max_file_size": "much"}]
SETTINGS: list[dict[str, Any]] = [
    *({"codecs": c} for c in ("zip", "", "jpeg:quality=101", "fast:level=3", ["raw"], 5)),
    *({"codecs": {"x": c}} for c in ("zip", None, [{"id": "zip"}])),
    {"codecs": {"x": [{"id": "zstd", "level": "high"}]}},
    {"codecs": {1: "raw"}},
    *({"features": f} for f in (["x"], range(10**12), {"x": "depth"}, {"x": {"units": "m"}})),
    *({"chunk_frames": n} for n in (0, 65_537, "8", True, 2.0)),
    *({"fps": fps} for fps in (10**400, "10")),
]


@pytest.mark.parametrize(
    ("options", "error"),
    [*((o, errors.SchemaError) for o in SETTINGS), *((o, errors.DestinationError) for o in SIZES)],
)
def test_what_is_wrong_for_any_features_is_refused_at_once(
    tmp_path: Path, options: dict[str, Any], error: type[errors.SeqRecordError]
) -> None:
    with pytest.raises(error) as caught:
        SeqRecordWriter(tmp_path / "d", **options)
    assert (caught.value.expected, caught.value.got) != (None, None)
    assert not (tmp_path / "d").exists()


def test_a_codec_for_a_feature_that_is_not_there(tmp_path: Path) -> None:
    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (3, 4))])
    with pytest.raises(errors.SchemaError):
        SeqRecordWriter(tmp_path / "d", schema=schema, codecs={"y": "raw"})
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("codec", [*CODEC_NAMES, "jpeg:quality=90", "av1:quality=30,gop=16"])
def test_a_codec_that_has_a_name_is_taken(tmp_path: Path, codec: str) -> None:
    for codecs in (codec, {"x": codec}):
        SeqRecordWriter(tmp_path / "d", codecs=codecs, chunk_frames=np.int64(8)).abort()


def test_a_frame_of_features_without_names(tmp_path: Path) -> None:
    with (
        pytest.raises(errors.SchemaError, match=r"not a feature name; .* got: 1"),
        SeqRecordWriter(tmp_path / "d") as writer,
        writer.episode("a") as episode,
    ):
        episode.append({1: np.zeros(3)})  # type: ignore[dict-item]


def test_added_to_with_other_features_or_codecs(tmp_path: Path) -> None:
    write(tmp_path, {"a": 2}, codecs="fast")
    other = Schema([FeatureSpec("x", np.dtype("<f4"), (3, 4))])
    for mode in ("append", "resume"):
        with pytest.raises(errors.SchemaError, match="other features"):
            SeqRecordWriter(tmp_path, mode=mode, schema=other)
        with pytest.raises(errors.SchemaError, match="other codecs"):
            SeqRecordWriter(tmp_path, mode=mode, codecs="small")
    write(tmp_path, {"b": 2}, mode="append", codecs="fast")
    write(tmp_path, {"c": 2}, mode="append")
    check(tmp_path, {"a": 2, "b": 2, "c": 2})


def test_pieces_of_an_episode_that_was_given_up_are_removed(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=1, max_file_size=1) as writer:
        episode = writer.episode("given up")
        for i in range(40):
            episode.append(made_frame("x", i))
        episode.abort()
        with writer.episode("a") as episode:
            episode.append(made_frame("a", 0))
    assert len(list((tmp_path / "records").iterdir())) == 2, "of each group's chunk one"
    write(tmp_path, {"b": 2}, mode="append")
    check(tmp_path, {"a": 1, "b": 2})


@pytest.mark.parametrize("mode", ["w", "a", "x", "w+", "Append", "", None])
def test_an_unknown_mode_names_those_that_there_are(tmp_path: Path, mode: Any) -> None:
    before = write(tmp_path / "d", {"a": 2})
    for folder in ("d", "new"):
        with pytest.raises(errors.DestinationError, match="create, append or resume") as caught:
            SeqRecordWriter(tmp_path / folder, mode=mode)
        assert caught.value.got == repr(mode)
    assert not (tmp_path / "new").exists()
    with seqrecord.open(tmp_path / "d") as dataset:
        assert dataset.fingerprint == before


def test_what_is_no_image_is_no_frame(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path / "d")
    refused = pytest.raises(
        errors.FrameError, match=r"this image cannot .*episode: a; feature: photo"
    )
    with refused, writer, writer.episode("a") as episode:
        episode.append({"photo": EncodedImage(b"no image")})
