from __future__ import annotations

import io
import itertools
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter, errors
from seqrecord.errors import SchemaError, SourceError
from seqrecord.store.codecs.presets import CODEC_NAMES
from seqrecord.store.format.footer import MAX_FOOTER_BYTES
from tests.kit.datasets import append, frame, lengths_of, numbered, write_dataset, write_episodes
from tests.kit.faults import small_writer
from tests.kit.made_source import GivenSource
from tests.kit.processes import without_collector

KINDS = pytest.mark.parametrize("kind", [SeqRecordWriter, SeqRecordRecorder])
EPISODES = {"a": 9, "b/c": 1, "d": 30}
FOUR_BY_FIVE = np.zeros((4, 5))


def write(where: Any, episodes: Mapping[str, int], mode: str = "create", **options: Any) -> str:
    """Write and return the fingerprint."""
    with small_writer(where, mode, **options) as writer:
        write_episodes(writer, episodes)
    return seqrecord.open(where).fingerprint


def test_modes(tmp_path: Path, memory_url: str) -> None:
    write(memory_url, EPISODES)
    assert lengths_of(memory_url) == EPISODES
    write(memory_url, {"more": 3}, "append")
    assert lengths_of(memory_url) == {**EPISODES, "more": 3}
    old, new = tmp_path / "old", tmp_path / "new"
    before = write(old, {"a": 3}, codecs="fast")
    with pytest.raises(errors.DestinationError, match="--append"):
        SeqRecordWriter(old)
    with pytest.raises(errors.DestinationError, match="no dataset to append to"):
        SeqRecordWriter(new, mode="append")
    for folder, unknown in itertools.product((old, new), ("w", "a", "Append", "", None)):
        with pytest.raises(errors.DestinationError, match="create, append or resume") as caught:
            SeqRecordWriter(folder, mode=unknown)  # type: ignore[arg-type]
        assert caught.value.got == repr(unknown)
    with pytest.raises(errors.DestinationError, match="no episode"), SeqRecordWriter(new):
        pass
    assert not new.exists()
    assert write(old, {}, "append") == before
    other = Schema([FeatureSpec("y", np.dtype("<f4"), (3, 4))])
    for mode in ("append", "resume"):
        with pytest.raises(errors.SchemaError, match="other features"):
            SeqRecordWriter(old, mode=mode, schema=other)
        with pytest.raises(errors.SchemaError, match="other codecs"):
            SeqRecordWriter(old, mode=mode, codecs={"x": [{"id": "zstd", "level": 3}]})
    for key, codecs in (("b", "fast"), ("c", None)):
        write(old, {key: 2}, "append", codecs=codecs)
    assert lengths_of(old) == {"a": 3, "b": 2, "c": 2}


def test_files_of_an_interrupted_append_do_not_damage_the_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"a": 5})
    writer = small_writer(tmp_path, "append")
    write_episodes(writer, {"b": 1})
    writer.abort()
    assert lengths_of(tmp_path) == {"a": 5}
    with caplog.at_level("INFO"):
        write(tmp_path, {"c": 2, "d": 1}, "append")  # ignores these files
    assert "ignored 1 record file of another writer" in caplog.text
    assert f"{tmp_path.name}: committing 3 episodes" in caplog.text
    assert lengths_of(tmp_path) == {"a": 5, "c": 2, "d": 1}
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths_of(tmp_path) == {"a": 5, "b": 1, "c": 2, "d": 1}


# Episodes


def test_calls_in_the_wrong_order(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=1) as writer:
        with writer.episode("a") as episode:
            episode.append(frame("a", 0))
            with pytest.raises(errors.DestinationError, match="a has not ended"):
                writer.episode("b")
            episode.close()  # before the block ends
        with pytest.raises(errors.DestinationError, match=r"exists already.*completed_episodes"):
            writer.episode("a")
        with pytest.raises(errors.DestinationError, match="has ended"):
            episode.append(frame("a", 1))
        with pytest.raises(errors.FormatError, match="key"):
            writer.episode("../b")
        with pytest.raises(errors.FormatError, match="JSON"):
            writer.episode("b", metadata={"x": object()})
        for metadata in (5, [1], "ab", np.zeros(2)):
            with pytest.raises(errors.FormatError, match=r"not a mapping.*episode: b"):
                writer.episode("b", metadata=metadata)  # type: ignore[arg-type]
        with pytest.raises(errors.FrameError, match="has no frames"), writer.episode("b"):
            pass
        with writer.episode("b") as episode:
            episode.append(frame("b", 0))
            with pytest.raises(errors.FormatError, match=r"not a mapping.*episode: b"):
                episode.close([1])  # type: ignore[arg-type]
            episode.abort()
        write_episodes(writer, {"b": 1})
        assert writer.close().num_frames == 2
    for action in (writer.close, lambda: writer.episode("b")):
        with pytest.raises(errors.DestinationError, match="closed"):
            action()
    writer.abort()
    assert lengths_of(tmp_path) == {"a": 1, "b": 1}


def test_a_closed_writer_is_freed_with_its_last_reference(tmp_path: Path) -> None:
    """And the memory of its chunks."""
    with without_collector():
        writer = SeqRecordWriter(tmp_path / "records", codecs="raw")
        with writer, writer.episode("a") as episode:
            episode.append({"x": np.zeros(4, np.float32)})
        alive = weakref.ref(writer)
        del writer, episode
        assert alive() is None


def test_closing_with_an_open_episode_is_an_error(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path)
    write_episodes(writer, {"a": 1})
    writer.episode("b").append(frame("b", 0))
    with pytest.raises(errors.DestinationError, match="in the middle of an episode"):
        writer.close()
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths_of(tmp_path) == {"a": 1}


@pytest.mark.parametrize("has_features", [True, False])
def test_a_refused_frame_drops_its_episode(tmp_path: Path, has_features: bool) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=4) as writer:
        write_episodes(writer, {"a": 1} if has_features else {})
        episode = append(writer.episode("b"), numbered("b", 40))
        with pytest.raises(errors.FrameError, match="episode: b; feature: x; frame: 40"):
            episode.append({"x": np.zeros(50, np.uint16)})
        with pytest.raises(errors.DestinationError, match="dropped after an error"):
            episode.append(frame("b", 40))
        with pytest.raises(errors.DestinationError, match="dropped after an error"):
            episode.close()
        write_episodes(writer, {"b": 1})
    assert lengths_of(tmp_path) == ({"a": 1, "b": 1} if has_features else {"b": 1})


def test_a_swallowed_error_does_not_shorten_an_episode(tmp_path: Path) -> None:
    def swallow() -> None:
        with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
            append(episode, numbered("a", 40))
            with pytest.raises(errors.FrameError):
                episode.append({"x": np.zeros(3)})

    with pytest.raises(errors.DestinationError, match="dropped after an error"):
        swallow()
    assert lengths_of(tmp_path) == {}


def test_files_of_an_aborted_episode_are_removed(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, chunk_frames=1, max_file_size=1) as writer:
        episode = append(writer.episode("given up"), numbered("x", 40))
        episode.abort()
        write_episodes(writer, {"a": 1})
    assert len(list((tmp_path / "records").iterdir())) == 1
    write(tmp_path, {"b": 2}, "append", codecs=None)
    assert lengths_of(tmp_path) == {"a": 1, "b": 2}


@pytest.mark.slow
def test_long_keys_begin_another_file(tmp_path: Path) -> None:
    """Before the footer is too large: a letter takes up to six bytes in its JSON."""
    keys = ["é" * 500 + f"{number}" for number in range(6000)]
    frames = [{"x": np.zeros(1, np.uint8)}]
    write_dataset(tmp_path, dict.fromkeys(keys, frames), codecs="raw")
    sizes = [file.stat().st_size for file in (tmp_path / "records").iterdir()]
    assert sum(sizes) > MAX_FOOTER_BYTES // 2 > max(sizes) - 1_000_000
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == keys


# Frames


@pytest.mark.parametrize("codec", ["raw", "balanced"])
@KINDS
def test_pillow_masks_are_stored_as_bools(tmp_path: Path, kind: Any, codec: str) -> None:
    """Pillow's arrays of one-bit images have bytes 0 and 255."""
    mask = np.random.default_rng(0).integers(0, 2, (6, 9)).astype(bool)
    array = np.asarray(Image.fromarray(mask))
    assert array.view(np.uint8).max() == 255
    specs = {"mask": {"kind": "mask"}}
    with kind(tmp_path, codecs=codec, features=specs) as writer, writer.episode("a") as episode:
        append(episode, [{"mask": item} for item in (array, array.T[:9, :6].T, mask)])
    with seqrecord.open(tmp_path) as dataset:
        for stored in dataset.episodes["a"][:]["mask"]:
            np.testing.assert_array_equal(stored.view(np.uint8), mask)
        statistics = dataset.statistics["mask"]
        assert [*statistics.max, *statistics.mean] == [1, pytest.approx(mask.mean())]


@pytest.mark.parametrize(
    ("name", "item", "properties", "message"),
    [
        ("image", np.zeros((40, 50, 3)), {}, "image: float64 .* 8 bytes per number"),
        ("front", np.zeros((40, 50, 3)), {}, "front: float64 .* 8 bytes per number"),
        ("depth", np.zeros((4, 5)), {}, "depth: float64 .* 8 bytes per number"),
        ("x", np.zeros((3, 4, 5), np.uint8), {}, "channels first"),
        ("rgb", np.zeros((1, 4, 5), np.float32), {}, "channels first"),
        ("u", np.zeros((2, 4, 5), np.float32), {"kind": "flow"}, "channels first"),
        ("action", np.full(3, np.nan), {}, "action has NaN .* episode a, frame 1"),
        ("speed", np.float32(np.inf), {}, "speed has NaN .* episode a, frame 1"),
        ("pose", np.full((4, 4), np.nan), {"kind": "pose"}, "pose has NaN .* episode a, frame 1"),
        ("depth", np.full((4, 5), np.nan, np.float32), {}, ""),
        ("masks", np.zeros((3, 4, 5), np.uint8), {}, ""),
        ("points", np.full((4, 3), np.nan), {"shape": (None, 3)}, ""),
        ("x", np.zeros((4, 5, 3), np.uint8), {}, ""),
        ("state", np.zeros(3), {}, ""),
    ],
)
@pytest.mark.parametrize(
    ("kind", "codec"), [(SeqRecordWriter, "raw"), (SeqRecordRecorder, "balanced")]
)
def test_probable_mistakes_are_logged_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    codec: str,
    name: str,
    item: Any,
    properties: Any,
    message: str,
) -> None:
    features = {name: properties} if properties else None
    with kind(tmp_path, features=features, codecs=codec) as writer:
        for key in "ab":
            with writer.episode(key) as episode:
                append(episode, [{name: value} for value in (np.zeros_like(item), item, item)])
    found = caplog.messages
    assert len(found) == bool(message)
    assert re.search(message, "".join(found))
    caplog.clear()
    with kind(tmp_path, mode="append") as writer, writer.episode("c") as episode:
        episode.append({name: np.zeros_like(item)})
    assert not caplog.records  # the stored form cannot change


@KINDS
def test_a_first_value_may_have_no_rows(tmp_path: Path, kind: Any) -> None:
    rows = [np.zeros((n, 3), np.float32) for n in (0, 2, 0, 1)]
    with (
        pytest.raises(errors.SchemaError, match=r'"points": {"shape": \(None, 3\)}'),
        kind(tmp_path / "a", features={"points": {"kind": "points"}}) as writer,
        writer.episode("a") as episode,
    ):
        episode.append({"points": rows[0]})
    shape = {"points": {"shape": (None, 3)}}
    with kind(tmp_path / "b", features=shape) as writer, writer.episode("a") as episode:
        append(episode, [{"points": each} for each in rows])
    with seqrecord.open(tmp_path / "b") as dataset:
        read = dataset.episodes["a"]
        assert [len(read[i]["points"]) for i in range(4)] == [0, 2, 0, 1]


@KINDS
def test_one_mismatched_frame_is_refused_at_any_position(tmp_path: Path, kind: Any) -> None:
    def write(path: Path, **more: Any) -> None:
        with kind(path, **more) as writer, writer.episode("a") as episode:
            append(episode, [{"x": np.zeros((4 - (number == odd), 3))} for number in range(45)])

    for odd in (2, 31, 40):
        with pytest.raises(errors.FrameError, match="pass schema=") as caught:
            write(tmp_path / f"a{odd}")
        assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("a", odd, "x")
        write(tmp_path / f"b{odd}", features={"x": {"shape": (None, 3)}})
        with seqrecord.open(tmp_path / f"b{odd}") as dataset:
            assert str(dataset.features["x"]) == "x: float64 [?, 3]"
            assert dataset.episodes["a"][odd]["x"].shape == (3, 3)


@pytest.mark.parametrize("kind", [SeqRecordWriter, seqrecord.SeqRecordRecorder])
def test_properties_and_codecs_are_as_they_were_at_the_call(tmp_path: Path, kind: Any) -> None:
    """They are used with the first frames."""
    properties: dict[str, Any] = {"x": {"kind": "action", "unit": "m"}}
    codecs = {"x": "raw"}
    with kind(tmp_path, features=properties, codecs=codecs) as writer:
        properties["x"]["unit"], codecs["x"] = "mm", "small"
        properties["y"] = {"kind": "state"}
        with writer.episode("a") as episode:
            episode.append({"x": np.zeros(3)})
    with seqrecord.open(tmp_path) as dataset:
        spec = dataset.features["x"]
    assert (spec.kind, spec.unit, spec.codec) == ("action", "m", ())


def test_the_first_chunk_defines_the_schema(tmp_path: Path) -> None:
    specs = {"note": {"shape": (None,)}}
    with SeqRecordWriter(tmp_path, codecs="raw", features=specs) as writer:
        with writer.episode("a") as episode:
            episode.append({"image": np.zeros((4, 5), np.uint8)})
            episode.append({"image": np.ones((4, 5), np.uint8), "pose": np.arange(7.0)})
            episode.append({"note": np.zeros(3, np.uint8)})
            episode.append({"note": np.zeros(5, np.uint8), "step": 4})
            schemas = [writer.schema]
        schemas.append(writer.schema)
        assert [schema is None for schema in schemas] == [True, False]
        episode = writer.episode("b")
        with pytest.raises(errors.FrameError, match="pass a schema"):
            episode.append({"pose": np.zeros(7), "later": np.zeros(3)})
    with seqrecord.open(tmp_path) as dataset:
        features = ["image: uint8 [4, 5]", "pose: float64 [7]", "note: uint8 [?]", "step: int64 []"]
        assert [str(spec) for spec in dataset.features.values()] == features
        read = dataset.episodes["a"]
        assert read.present("pose").tolist() == [False, True, False, False]
        names = [["image"], ["image", "pose"], ["note"], ["note", "step"]]
        assert [sorted(read[i]) for i in range(4)] == names
        assert read[3]["step"] == 4


@pytest.mark.parametrize(
    ("frames", "error", "message"),
    [
        (
            [FOUR_BY_FIVE, FOUR_BY_FIVE.astype("f4")],
            errors.FrameError,
            r"frame: 1; expected: x: float64 \[4, 5\]; got: float32",
        ),
        ([FOUR_BY_FIVE, np.zeros((4, 5, 1))], errors.FrameError, r"got: float64 \[4, 5, 1\]"),
        ([FOUR_BY_FIVE, "text"], errors.FrameError, "frame: 1"),
        ([np.zeros((0, 4))], errors.SchemaError, "feature: x"),
        ([np.array(["a"])], errors.SchemaError, "feature: x"),
        ([np.array(None)], errors.SchemaError, "feature: x"),
        ([["text"]], errors.SchemaError, "feature: x"),
        ([EncodedImage(b"no image")], errors.FrameError, r"this image cannot .*feature: x"),
    ],
)
def test_frames_without_a_valid_schema_are_refused(
    tmp_path: Path, frames: list[Any], error: type[errors.SeqRecordError], message: str
) -> None:
    writer = SeqRecordWriter(tmp_path)
    episode = writer.episode("no names")
    episode.append({1: np.zeros(3)})  # type: ignore[dict-item]
    with pytest.raises(errors.SchemaError, match=r"not a feature name; .* got: 1"):
        episode.close()
    episode = append(writer.episode("some/key"), [{"x": item} for item in frames])
    with pytest.raises(error, match=message) as caught:
        episode.close()
    assert caught.value.episode == "some/key"
    if error is errors.SchemaError:  # the schema is not set yet
        write_episodes(writer, {"a": 1})
        writer.close()
        assert lengths_of(tmp_path) == {"a": 1}
    writer.abort()


@pytest.mark.parametrize("codec", ["raw", "balanced"])
@pytest.mark.parametrize("given", [True, False])
def test_arrays_of_any_layout_may_be_reused_after_append(
    tmp_path: Path, given: bool, codec: str
) -> None:
    layouts: list[Any] = [
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: a,
    ]
    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (6, 8))]) if given else None
    array = np.empty((6, 8), np.float32)
    expected = []
    with (
        SeqRecordWriter(tmp_path, schema=schema, codecs=codec) as writer,
        writer.episode("a") as episode,
    ):
        for i in range(40):
            array[:] = np.arange(48).reshape(6, 8) * i
            expected.append(array.copy())
            episode.append({"x": layouts[i % 5](array)})
    with seqrecord.open(tmp_path) as dataset:
        got: Any = dataset.episodes["a"][:]["x"]
        assert got.dtype == "<f4"
        np.testing.assert_array_equal(got, expected)


# Settings

SCHEMA = Schema([FeatureSpec("x", np.dtype("<f4"), (3, 4))])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"codecs": c}, errors.SchemaError) for c in ("zip", "", "jpeg:quality=101", ["raw"], 5)),
        *(({"codecs": {"x": c}}, errors.SchemaError) for c in ("zip", None, [{"id": "zip"}])),
        ({"codecs": {"x": [{"id": "zstd", "level": "high"}]}}, errors.SchemaError),
        ({"codecs": "fast:level=3"}, errors.SchemaError),
        ({"codecs": {1: "raw"}}, errors.SchemaError),
        ({"codecs": {"y": "raw"}, "schema": SCHEMA}, errors.SchemaError),
        *(({"schema": s}, errors.SchemaError) for s in (["x"], {"x": "float32"}, 3)),
        *(({"features": f}, errors.SchemaError) for f in (["x"], range(10**12), {"x": "depth"})),
        ({"features": {"x": {"units": "m"}}}, errors.SchemaError),
        *(({"chunk_frames": n}, errors.SchemaError) for n in (0, 65_537, "8", True, 2.0)),
        *(({"fps": fps}, errors.SchemaError) for fps in (10**400, "10", -3)),
        *(({"max_file_size": n}, errors.DestinationError) for n in (0, "0.3 B", "much")),
    ],
)
def test_invalid_settings_are_refused_before_writing(
    tmp_path: Path, options: dict[str, Any], error: type[errors.SeqRecordError]
) -> None:
    with pytest.raises(error) as caught:
        SeqRecordWriter(tmp_path / "d", **options)
    assert (caught.value.expected, caught.value.got) != (None, None)
    assert not (tmp_path / "d").exists()


def test_named_codecs_are_accepted(tmp_path: Path) -> None:
    for codec in [*CODEC_NAMES, "jpeg:quality=90", "av1:quality=30,gop=16"]:
        for codecs in (codec, {"x": codec}):
            SeqRecordWriter(tmp_path / "d", codecs=codecs, chunk_frames=np.int64(8)).abort()


# Values of frames


ONES = torch.ones(2, 3)


class Failing:
    """Like an array of another library on an unavailable device."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("on a device that is gone")


class Subclass(np.ndarray):
    pass


class Convertible:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3, np.float32)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*deprecated")
def test_quantised_tensors(tmp_path: Path) -> None:
    try:
        value = torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8)
    except (RuntimeError, AttributeError) as error:
        pytest.skip(str(error))
    with pytest.raises(SchemaError, match=r"value\.dequantize\(\)"):
        write_dataset(tmp_path, {"e": [{"x": value}]})


def turned_picture(orientation: int = 6) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.new("RGB", (4, 6)).save(stream, "JPEG", exif=exif)
    return Image.open(stream)


def animation() -> Image.Image:
    stream = io.BytesIO()
    pictures = [Image.new("RGB", (4, 6), (n, 0, 0)) for n in range(3)]
    pictures[0].save(stream, "GIF", save_all=True, append_images=pictures[1:])
    return Image.open(stream)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "masked": (lambda: np.ma.masked_less(np.arange(3), 1), r"mask; .*value\.filled\(0\)"),
    "nothing masked": (lambda: np.ma.array(np.arange(3)), r"value\.filled\(0\)"),
    "the masked constant": (lambda: np.ma.masked, r"value\.filled\(0\)"),
    "a list of masked": (lambda: [np.zeros(2), np.ma.masked_less(np.arange(2), 1)], "mask"),
    "nested lists": (lambda: [[1, 2], [3, np.ma.masked]], "mask"),
    "float8": (lambda: ONES.to(torch.float8_e4m3fn), r"expected: value\.float\(\)"),
    "a gradient": (lambda: ONES.clone().requires_grad_(), r"expected: value\.detach\(\); "),
    "a parameter": (lambda: torch.nn.Parameter(ONES), r"expected: value\.detach\(\); "),
    "both": (
        lambda: ONES.to(torch.float8_e4m3fn).requires_grad_(),
        r"value\.detach\(\)\.float\(\)",
    ),
    "sparse": (lambda: ONES.to_sparse(), r"value\.to_dense\(\)"),
    "compressed rows": (lambda: ONES.to_sparse_csr(), r"value\.to_dense\(\)"),
    "meta": (lambda: torch.ones(2, device="meta"), "a tensor with values"),
    "conjugated": (lambda: (ONES + 1j).conj(), r"value\.resolve_conj\(\)"),
    "negated": (lambda: (ONES + 1j).conj().imag, r"value\.resolve_neg\(\)"),
    "failing": (Failing, "Failing: RuntimeError: on a device that is gone"),
    "a ragged list": (lambda: [[1], [1, 2]], "cannot be converted"),
    "objects": (lambda: np.array([{}, None]), "object.*|for objects, an array of numbers"),
    "structured": (lambda: np.zeros(2, [("x", "f4"), ("y", "i2")]), r"array\['name'\]"),
    "records": (lambda: np.rec.array(np.zeros(2, [("x", "f4")])), r"array\['name'\]"),
    "datetimes": (lambda: np.zeros(2, "M8[ns]"), r"array\.astype\('int64'\)"),
    "texts": (lambda: np.array(["a", "bc"]), "for texts, a str"),
    "a turned picture": (turned_picture, r"ImageOps\.exif_transpose\(value\)"),
    "an animation": (animation, "a file of 3 pictures"),
}


Frames = list[dict[str, Any]]


def schema_of(frames: Frames) -> Schema:
    return Schema([FeatureSpec(n, v.dtype, v.shape) for n, v in frames[0].items()])


def by_recorder(root: Path, frames: Frames) -> None:
    with SeqRecordRecorder(root) as recorder:
        write_episodes(recorder, {"e": frames})


WAYS: dict[str, Callable[[Path, Frames], object]] = {
    "writer": lambda root, frames: write_dataset(root, {"e": frames}),
    "schema": lambda root, frames: write_dataset(root, {"e": frames}, schema=schema_of(frames)),
    "recorder": by_recorder,
    "source": lambda root, frames: seqrecord.convert(
        GivenSource(schema_of(frames), {"e": frames}), root, workers=1
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("way", WAYS)
def test_values_that_would_lose_data_are_refused(tmp_path: Path, way: str, thorough: bool) -> None:
    few = ["masked", "float8", "failing", "structured", "texts", "an animation"]
    for case in REFUSED if thorough or way == "writer" else few:
        make, match = REFUSED[case]
        good = np.zeros(3, np.int64)
        dtype_only = case in ("objects", "structured", "records", "datetimes", "texts")
        values = [make()] if dtype_only and way == "writer" else [good, make()]
        if dtype_only and way != "writer":
            match = "does not fit its feature"
        with pytest.raises((SchemaError, SourceError), match=match) as caught:
            WAYS[way](tmp_path / case, [{"x": value} for value in values])
        assert caught.value.feature == "x", case
        if values[0] is good:
            assert (caught.value.episode, caught.value.frame) == ("e", 1), case


VALUES: list[Any] = [
    *(ONES, ONES.half(), ONES.t(), torch.tensor(3), ONES.to(torch.complex64), ONES > 0),
    *(torch.zeros(2, dtype=torch.uint16), [1, 2], 3.5, True, np.float32(2), np.ones((2, 2)).T),
    *(np.eye(2).view(Subclass), Convertible(), Image.new("L", (4, 6), 7), turned_picture(1)),
]


@pytest.mark.parametrize("way", ["writer", "recorder"])
def test_values_that_convert_to_arrays_without_loss(tmp_path: Path, way: str) -> None:
    WAYS[way](tmp_path, [{f"x{number}": value for number, value in enumerate(VALUES)}] * 2)
    got = seqrecord.open(tmp_path).episodes["e"][1]
    for number, value in enumerate(VALUES):
        np.testing.assert_array_equal(got[f"x{number}"], np.asarray(value), strict=True)
