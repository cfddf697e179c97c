"""Replay buffers as Diffusion Policy and UMI write them, by zarr, in both of its formats."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import ZarrSource, inventory_of
from tests.formats.format_cases.replay_buffers import write_buffer
from tests.kit.datasets import noise
from tests.kit.source_faults import check_refused, frames_of, write

zarr = pytest.importorskip("zarr")  # it needs Python 3.11
SLOW = pytest.mark.slow


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_episodes_are_the_rows_between_their_ends(tmp_path: Path, zarr_format: int) -> None:
    arrays = write_buffer(tmp_path / "pusht.zarr", zarr_format=zarr_format, spare=5)
    source = open_source(tmp_path / "pusht.zarr")
    infos = source.episodes()
    keys = [*(("pusht/000000", 4), ("pusht/000001", 2), ("pusht/000002", 7))]
    assert [(info.key, info.num_frames) for info in infos] == keys
    assert infos[1].metadata == {"buffer": "pusht.zarr", "number": 1, "success": True}
    for number, (start, stop) in enumerate(((0, 4), (4, 6), (6, 13))):
        frames = frames_of(source, number)
        for name, array in arrays.items():
            read = [frame[name] for frame in frames]
            np.testing.assert_array_equal(read, array[start:stop], strict=True)


def test_a_zip_and_a_folder_of_buffers(tmp_path: Path) -> None:
    with zarr.storage.ZipStore(tmp_path / "cup.zarr.zip", mode="w") as store:
        cup = write_buffer(store, (3, 1))
    ten = write_buffer(tmp_path / "task_10.zarr", (2,))
    write_buffer(tmp_path / "task_9.zarr", (1, 1))
    (tmp_path / "notes").mkdir()
    source = open_source(tmp_path)
    assert [info.key for info in source.episodes()] == [
        *("cup/000000", "cup/000001"),
        *("task_9/000000", "task_9/000001", "task_10/000000"),
    ]
    np.testing.assert_array_equal([f["img"] for f in frames_of(source)], cup["img"][:3])
    np.testing.assert_array_equal([f["action"] for f in frames_of(source, 4)], ten["action"])
    zipped = frames_of(open_source(tmp_path / "cup.zarr.zip", features=["action"]), 1)
    np.testing.assert_array_equal([frame["action"] for frame in zipped], cup["action"][3:])


def test_a_buffer_in_a_folder_of_its_name(tmp_path: Path) -> None:
    """As `unzip pusht.zarr.zip -d pusht.zarr` leaves it."""
    arrays = write_buffer(tmp_path / "pusht.zarr" / "pusht.zarr", (4, 2))
    source = open_source(tmp_path / "pusht.zarr")
    assert [info.key for info in source.episodes()] == ["pusht/000000", "pusht/000001"]
    read = [frame["action"] for frame in frames_of(source, 1)]
    np.testing.assert_array_equal(read, arrays["action"][4:])


def test_values_with_the_names_of_an_episodes_place(tmp_path: Path) -> None:
    """They are not where the episode is."""
    path = tmp_path / "pusht.zarr"
    arrays = write_buffer(path, (4, 2))
    numbers = np.array([1, 0])
    zarr.open_group(str(path), mode="r+").create_array("meta/number", data=numbers, chunks=(2,))
    source = open_source(path)
    read = [frame["action"] for frame in frames_of(source, 1)]
    np.testing.assert_array_equal(read, arrays["action"][4:])
    left_out = {row.pattern: row.reason for row in inventory_of(source).left_out}
    assert left_out["meta/number"].endswith("or called buffer or number")


def test_images_of_the_codec_that_umi_uses(tmp_path: Path) -> None:
    image_codecs = pytest.importorskip("imagecodecs.numcodecs")
    image_codecs.register_codecs(verbose=False)
    write_buffer(tmp_path / "a.zarr", (2, 1))
    images = noise(3, 16, 16, 3)
    codec = image_codecs.Jpegxl(lossless=True, numthreads=1)
    data = zarr.open_group(tmp_path / "a.zarr")["data"]
    data.create_array("camera0_rgb", data=images, chunks=(1, 16, 16, 3), compressors=codec)
    source = ZarrSource(tmp_path, features=["camera0_rgb"])
    read = [frame["camera0_rgb"] for number in (0, 1) for frame in frames_of(source, number)]
    np.testing.assert_array_equal(read, images, strict=True)


def test_texts_and_kinds(tmp_path: Path) -> None:
    write_buffer(tmp_path / "a.zarr", (2, 1), zarr_format=2)
    data = zarr.open_group(tmp_path / "a.zarr")["data"]
    data.create_array("task", data=np.array(["öffnen", "", "greifen"]), chunks=(2,))
    source = ZarrSource(tmp_path)
    assert str(source.schema()["task"]) == "task: text"
    assert [f["task"] for number in (0, 1) for f in frames_of(source, number)] == [
        *("öffnen", "", "greifen")
    ]
    kinds = {name: spec.kind for name, spec in source.schema().items() if spec.kind}
    assert kinds == {"action": "action", "img": "image", "task": "text"}
    data.create_array("when", data=np.array([1, 2, 3], "M8[s]"), chunks=(2,))
    assert "when" not in ZarrSource(tmp_path).schema()
    with pytest.raises(SourceError, match=r"a dtype that cannot be stored; .*feature: when"):
        ZarrSource(tmp_path, features=["when"]).schema()
    assert len(frames_of(ZarrSource(tmp_path, features=["task", "action"]))) == 2


# --- broken buffers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two buffers of two arrays, of which tests break copies."""
    folder = tmp_path_factory.mktemp("sound")
    for name, lengths in (("a.zarr", (4, 2, 7)), ("b.zarr", (2,))):
        write_buffer(folder / name, lengths)
        for array in ("keypoint", "n_contacts"):
            shutil.rmtree(folder / name / "data" / array)
    return folder


def _array(name: str, values: Any) -> Callable[[Path], None]:
    """Another array in the place of one."""

    def write(path: Path) -> None:
        group = zarr.open_group(path)
        del group[name]
        group.create_array(name, data=values, chunks=values.shape)

    return write


def _ends(*values: Any) -> Callable[[Path], None]:
    return _array("meta/episode_ends", np.array(values))


def _text(name: str, **changes: Any) -> Callable[[Path], None]:
    """Other facts of an array of version 2."""

    def write(path: Path) -> None:
        file = path / "data" / name / ".zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return write


def _fills(path: Path) -> None:
    """Nearly all frames are fill values, of which nothing is stored."""
    for file in (path / "data").glob("*/.zarray"):
        shape = json.loads(file.read_text())["shape"]
        _text(file.parent.name, shape=[1 << 40, *shape[1:]])(path)
    _ends(4, 6, 1 << 40)(path)


def test_a_broken_episode_is_refused_by_name(tmp_path: Path, sound: Path) -> None:
    few = _array("data/action", np.zeros((12, 2), "<f4"))
    no_blosc = write("data/img/4.0.0.0", b"no blosc frame")  # rows 12 to 14
    cases: list[tuple[Callable[[Path], object], list[int], str]] = [
        (few, [2], r"ends before the episode; .*action; expected: at least 13 rows"),
        (no_blosc, [2], r"cannot read /data/img\[6:13\]; .*feature: img; got: .*Blosc"),
        (_ends(4, 3, 9), [0, 1, 2], "episode_ends are not ascending"),
        (_ends(-4, 3, 9), [0, 1], "episode_ends are not ascending"),
        (
            _ends(9, 6, 13),
            [0, 1, 2],
            "episode_ends are not ascending",
        ),
        (_ends(4, 4, 9), [1], "episode_ends are not ascending"),
        (_ends(4, 6, 1 << 60), [2], "ends before the episode"),
        (_fills, [2], "episode too large; .*at most 268435456 frames"),
    ]
    for number, (breaks, bad, message) in enumerate(cases):
        path = shutil.copytree(sound / "a.zarr", tmp_path / f"{number}" / "a.zarr")
        breaks(path)
        keys = [f"a/{number:06d}" for number in bad]
        check_refused(ZarrSource(path.parent), keys, message, file=path)


CODECS: dict[str, tuple[int, Any]] = {
    "blosc": (2, numcodecs.Blosc()),
    "zlib": (2, numcodecs.Zlib()),
    "gzip": (2, numcodecs.GZip()),
    "lz4": (2, numcodecs.LZ4()),
    "zstd": (2, numcodecs.Zstd()),
    "blosc of 3": (3, zarr.codecs.BloscCodec()),
    "gzip of 3": (3, zarr.codecs.GzipCodec()),
    "zstd of 3": (3, zarr.codecs.ZstdCodec()),
}


@pytest.mark.parametrize(
    ("name", "is_sharded"),
    [
        *((name, False) for name in ("blosc", "zlib", "gzip", "lz4", "zstd of 3")),
        *(pytest.param(n, False, marks=SLOW) for n in ("zstd", "blosc of 3", "gzip of 3")),
        *(("blosc of 3", True), pytest.param("zstd of 3", True, marks=SLOW)),
    ],
)
def test_no_chunk_decodes_to_more_than_its_array_declares(
    tmp_path: Path, name: str, is_sharded: bool
) -> None:
    """A chunk of 3 MiB replaces a chunk of 32 bytes, or three of 1 MiB in a shard."""
    zarr_format, codec = CODECS[name]
    path, wanted = tmp_path / "a.zarr", np.arange(12.0).reshape(3, 4)
    big = np.ones((3 << 15, 4))
    arrays = {"action": (wanted, (1, 4)), "big": (big, (1 << 15, 4) if is_sharded else big.shape)}
    group = zarr.open_group(path, zarr_format=zarr_format)
    group.create_group("meta").create_array("episode_ends", data=np.array([3]))
    data = group.create_group("data")
    for each, (values, chunks) in arrays.items():
        shards: Any = {"shards": values.shape} if is_sharded else {}
        data.create_array(each, data=values, chunks=chunks, compressors=codec, **shards)
        if each == "action":
            frames = frames_of(ZarrSource(path))
            np.testing.assert_array_equal([frame["action"] for frame in frames], wanted)
    key = "c/0/0" if zarr_format == 3 else "0.0"
    shutil.copy(path / "data/big" / key, path / "data/action" / key)
    shutil.rmtree(path / "data/big")
    tracemalloc.start()
    with pytest.raises(SourceError) as caught:
        frames_of(ZarrSource(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (caught.value.episode, caught.value.feature) == ("a/000000", "action")
    assert peak < 2 << 20


def test_unknown_codecs_are_refused(tmp_path: Path, sound: Path) -> None:
    shutil.copytree(sound / "a.zarr", tmp_path / "a.zarr")
    filters = [{"id": "categorize", "labels": [], "dtype": "O"}]
    _text("action", filters=filters)(tmp_path / "a.zarr")
    with pytest.raises(SourceError) as caught:
        frames_of(ZarrSource(tmp_path))
    assert (caught.value.feature, caught.value.got) == ("data/action", "categorize")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_texts_of_a_chunk_are_counted(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, zarr_format=zarr_format)
    group.create_group("meta").create_array("episode_ends", data=np.array([2]))
    texts = group.create_group("data").create_array(
        "task", shape=(2,), dtype=str, chunks=(2,), compressors=None
    )
    texts[:] = np.array(["a", "é"], object)
    assert [frame["task"] for frame in frames_of(ZarrSource(path))] == ["a", "é"]
    chunk = path / "data/task" / ("c/0" if zarr_format == 3 else "0")
    chunk.write_bytes(b"\xff\xff\xff\x7f" + chunk.read_bytes()[4:])
    with pytest.raises(SourceError, match="cannot read") as caught:
        frames_of(ZarrSource(path))
    assert caught.value.feature == "task"


def _no_data(path: Path) -> None:
    shutil.rmtree(path / "data")
    (path / "data").mkdir()


# zarr itself refuses a pickle among the filters, but not behind another codec of objects.
OBJECTS = {"dtype": "|O", "fill_value": None, "filters": [{"id": "vlen-utf8"}]}
BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (
        _text("action", **OBJECTS, compressor={"id": "pickle", "protocol": 5}),
        "data/action contains pickled objects",
    ),
    (_text("action", chunks=[1 << 40, 2]), "chunks of data/action too large"),
    (_no_data, "damaged Zarr group; .*got: .data"),
    (write("data/img/.zarray", b"{"), "damaged Zarr group; .*got: "),
    (_ends(4.5), "invalid episode_ends"),
    (_ends([4], [6]), "invalid episode_ends"),
]


def test_a_broken_buffer_is_one_bad_episode(tmp_path: Path, sound: Path) -> None:
    for number, (breaks, message) in enumerate(BROKEN):
        root = shutil.copytree(sound, tmp_path / f"{number}")
        breaks(root / "a.zarr")
        source = ZarrSource(root)
        assert [info.key for info in source.episodes()] == ["a", "b/000000"]
        check_refused(source, ["a"], message)
        shutil.rmtree(root / "b.zarr")
        with pytest.raises(SourceError, match=message):
            ZarrSource(root).schema()


def test_zips_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr.zip"
    with zarr.storage.ZipStore(path, mode="w") as store:
        write_buffer(store, (2,))
    with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("data/action/0.0", b"other")
    with pytest.raises(SourceError, match="duplicate names") as caught:
        open_source(path).schema()
    assert caught.value.got == "2 entries named data/action/0.0"
    path.write_bytes(b"PK but no more")
    with pytest.raises(SourceError, match="unreadable or damaged Zarr group"):
        open_source(tmp_path).schema()


@pytest.mark.parametrize("name", ["data/action/.zarray", "meta/.zgroup"])
def test_metadata_of_a_zip_that_unpacks_to_much_is_refused(
    tmp_path: Path, sound: Path, name: str
) -> None:
    path = tmp_path / "a.zarr.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for source in sorted(filter(Path.is_file, (sound / "a.zarr").rglob("*"))):
            key = source.relative_to(sound / "a.zarr").as_posix()
            file.writestr(key, source.read_bytes() + b" " * ((64 << 20) * (key == name)))
    with pytest.raises(SourceError, match=f"value {name} too large"):
        open_source(path).schema()


def test_a_directory_of_a_zip_is_not_read_whole(tmp_path: Path) -> None:
    path, size = tmp_path / "a.zarr.zip", 1 << 30
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.truncate(size)
        file.seek(0, 2)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size - 4, 4, 0))
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="directory of a ZIP file too large"):
            open_source(path).schema()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
