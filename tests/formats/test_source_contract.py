"""Contract of all sources, with the cases of tests/formats/format_cases.

Detection, inventory, features, values, remote and damaged originals, conversion, reading in place.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import NotFoundError, SeqRecordError, SourceError
from seqrecord.sources import EpisodeInfo, LeftOut, Source, format_names, inventory_of
from seqrecord.store.areas import FORMATS
from seqrecord.store.feature_kinds import check_kinds_and_units
from seqrecord.store.format.page_kinds import page_kind
from tests.formats.all_cases import CASES
from tests.formats.cases import Case, Episodes, index_source, upload
from tests.kit.source_faults import check_refused, read_all
from tests.video.gops import decode_gops_of

LIDAR = LeftOut("notes/lidar.pcd", 1, "no reader")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def original(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Episodes]:
    """Files, which no test changes, and their frames."""
    folder = tmp_path_factory.mktemp("written") / "originals"
    folder.mkdir()
    return folder, case.write(folder)


@pytest.fixture(scope="module")
def whole(case: Case, original: tuple[Path, Episodes]) -> dict[str, Any]:
    return everything(case.opened(original[0]))


@pytest.fixture
def root(original: tuple[Path, Episodes], tmp_path: Path) -> Path:
    """A copy of the originals for each test."""
    return shutil.copytree(original[0], tmp_path / "originals")


def everything(source: Source, infos: Iterable[EpisodeInfo] = ()) -> dict[str, Any]:
    """Info, frames and video packets of each episode, for comparisons."""
    found = {}
    for info in infos or source.episodes():
        frames = [{n: _bytes(v) for n, v in frame.items()} for frame in source.frames(info)]
        videos = source.videos(info) if hasattr(source, "videos") else {}
        gops = {n: [(gop.packets, gop.order) for gop in each] for n, each in videos.items()}
        found[info.key] = (info, frames, gops)
    return found


def _bytes(value: Any) -> bytes:
    return value.data if isinstance(value, EncodedImage) else np.asarray(value).tobytes()


def decoded(source: Source, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
    """Frames with their images of videos, and encoded images as arrays."""
    schema = source.schema()
    videos = source.videos(info) if hasattr(source, "videos") else {}
    images = {name: decode_gops_of(schema[name], gops) for name, gops in videos.items()}
    for number, frame in enumerate(source.frames(info)):
        found: dict[str, Any] = {name: each[number] for name, each in images.items()}
        for name, value in frame.items():
            found[name] = value
            if isinstance(value, EncodedImage):
                found[name] = np.asarray(Image.open(io.BytesIO(value.data)))
        yield found


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_a_case_and_is_in_the_docs(name: str) -> None:
    classes = {case.inventory.split()[1]: case.source for case in CASES.values()}
    root = Path(__file__).parents[2]
    reference = (root / "docs/reference/sources.md").read_text()
    assert re.search(rf"^::: seqrecord\.(sources\.)?{classes[f'{name}:']}$", reference, re.M)
    for page in ("README.md", "docs/packing.md"):
        text = (root / page).read_text().lower()
        assert re.search(rf"\b{name.removesuffix('s')}", text), page


def test_detection_listing_and_selection(case: Case, original: tuple[Path, Episodes]) -> None:
    written, expected = original
    source = case.opened(written)
    assert type(source) is getattr(seqrecord.sources, case.source)
    assert isinstance(source, Source)
    infos = source.episodes()
    assert [info.key for info in infos] == [*expected]
    assert [info.num_frames for info in infos] == [*map(len, expected.values())]
    assert {info.fps for info in infos} == {case.fps}
    assert case.bad in expected
    assert source.episodes() == infos == case.opened(written).episodes()
    assert source.schema() == case.opened(written).schema()
    json.dumps([dict(info.metadata) for info in infos])
    first, *_, last = source.schema()
    assert list(case.opened(written, features=[last, first]).schema()) == [last, first]
    with pytest.raises(SourceError) as caught:
        case.opened(written, features=[first, "lidar"]).schema()
    assert caught.value.file is not None
    assert caught.value.got == "lidar"
    assert caught.value.expected
    with pytest.raises(SourceError, match="no feature is selected") as caught:
        case.opened(written, features=[])
    assert (caught.value.file is None, caught.value.got) == (False, "an empty list")
    for key in ("no such episode", "../originals", "", "/", ".", "x/..", str(written)):
        with pytest.raises(SourceError) as caught:
            list(source.frames(EpisodeInfo(key, 3)))
        assert caught.value.episode == key


def test_inventory(case: Case, root: Path) -> None:
    """Features in order with dtype, shape, kind, unit and place; data left out; notes."""
    (root / "notes").mkdir()
    (root / "notes" / "lidar.pcd").write_text("x")
    found = inventory_of(case.opened(root))
    assert LIDAR in found.left_out
    left_out = tuple(row for row in found.left_out if row != LIDAR)
    assert replace(found, left_out=left_out).lines() == case.inventory.strip().splitlines()
    names = [each.name for each in found.features]
    assert names == [*case.opened(root).schema()]
    chosen = inventory_of(case.opened(root, features=names[:1]))
    assert [each.name for each in chosen.features] == names[:1]
    assert chosen.features == found.features[:1]
    others = [row for row in chosen.left_out if row not in found.left_out]
    assert others or case.source == "VideoSource"  # times are no data of their own
    assert not any(row.is_data or "not selected by features=" not in row.reason for row in others)


def test_frames(case: Case, original: tuple[Path, Episodes]) -> None:
    """All values, in the schema's dtypes, decoded and as encoded images."""
    written, expected = original
    stored = b"".join(path.read_bytes() for path in written.rglob("*") if path.is_file())
    for keep in {False, bool(case.kept)}:
        source = case.opened(written, keep_encoded=keep)
        schema = source.schema()
        codecs = {n: spec.codec for n, spec in schema.items() if spec.codec and not spec.is_video}
        assert codecs == {
            name: ({"id": "seqrecord.image", "format": format_},)
            for name, format_ in (case.kept if keep else {}).items()
        }
        specs = schema.values()
        check_kinds_and_units(
            schema, {s.name: s.kind for s in specs}, {s.name: s.unit for s in specs}
        )
        for info in source.episodes():
            case.assert_frames(decoded(source, info), expected[info.key])
            for frame in source.frames(info):
                assert [*frame] == [feature for feature in schema if feature in frame]
                for feature, value in frame.items():
                    spec = schema[feature]
                    if isinstance(value, EncodedImage):
                        assert keep
                        is_compressed = case.source == "LeRobotSource"  # by Parquet
                        assert is_compressed or value.data in stored
                    elif spec.value == "text":
                        assert isinstance(value, str)
                    else:
                        array = np.asarray(value)
                        assert array.dtype == spec.dtype
                        assert array.flags.c_contiguous
                        assert spec.accepts(array.shape)
            videos = source.videos(info) if hasattr(source, "videos") else {}
            assert {*videos} == {n for n, spec in schema.items() if spec.is_video}


def test_a_pickled_source_is_equal(case: Case, root: Path, whole: dict[str, Any]) -> None:
    fresh = pickle.loads(pickle.dumps(case.opened(root)))
    source = case.opened(root)
    assert everything(source) == whole
    saved = pickle.dumps(source)
    copy = pickle.loads(saved)
    assert copy == fresh == source
    assert copy.schema() == source.schema()
    assert everything(copy, source.episodes()) == whole  # infos as sent to workers
    case.damage_episode(root)  # the pickle is a snapshot
    assert pickle.loads(saved).schema() == source.schema()


def test_a_url_and_a_folder_give_the_same(
    case: Case, root: Path, whole: dict[str, Any], memory_url: str
) -> None:
    """Episodes and inventory are equal, but video frames are not counted on a URL."""
    expected = inventory_of(case.opened(root))
    source = case.opened(upload(root, memory_url))
    found = inventory_of(source)
    notes = tuple(note for note in found.notes if not note.endswith("are not counted on a URL"))
    assert replace(found, notes=notes) == expected
    infos, copy = source.episodes(), pickle.loads(pickle.dumps(source))
    del source
    assert everything(copy, infos) == whole


def test_reading_in_place(
    case: Case,
    original: tuple[Path, Episodes],
    tmp_path: Path,
    home: Path,
    memory_url: str,
) -> None:
    """From a folder and a URL: every value, without features that an index cannot have."""
    written, expected = original
    source = case.opened(written)
    ragged = [n for n, s in source.schema().items() if not s.is_fixed and s.value != "text"]
    if case.referred is None:
        with pytest.raises(SourceError, match=r"cannot be read in place.*seqrecord write"):
            index_source(source, tmp_path / "index", workers=1)
        return
    url = upload(written, memory_url)
    for place, index in ((written, tmp_path / "index"), (url, tmp_path / "of_url")):
        index_source(case.opened(place), index, workers=1)
        check_indexed(case, index, expected, ragged)
        summary = seqrecord.summarize(index)
        assert summary.originals == (str(place),)
        assert 0 < summary.external_bytes <= sum(p.stat().st_size for p in written.rglob("*"))
        with seqrecord.open(index) as dataset:
            for info in source.episodes():
                metadata = dataset.episodes[info.key].metadata
                assert metadata.items() <= info.metadata.items()
                assert ragged or metadata == info.metadata
                assert dataset.episodes[info.key].fps == info.fps
        if case.opens:
            check_indexed(case, place, expected, ragged)
            assert len([*home.glob("indexes/*-*")]) == 1 + (place == url)
        else:
            with pytest.raises(NotFoundError, match="`seqrecord index SRC -o DST`"):
                seqrecord.open(place)
    assert seqrecord.verify(tmp_path / "index", deep=True).ok


def check_indexed(case: Case, place: Any, expected: Episodes, ragged: list[str]) -> None:
    with seqrecord.open(place) as dataset:
        kinds = {
            name: "video" if spec.is_video else spec.codec[0]["format"]
            for name, spec in dataset.features.items()
            if page_kind(spec).may_refer(spec)
        }
        assert kinds == case.referred
        assert any(group.external.any() for group in dataset.contents.index.groups)
        for key, frames in expected.items():
            kept = [{n: v for n, v in f.items() if n not in ragged} for f in frames]
            case.assert_frames((dataset.episodes[key][i] for i in range(len(frames))), kept)


def test_a_changed_file_is_noticed_in_place(case: Case, root: Path, home: Path) -> None:
    """A file of each kind of folder, except data left out and features that no index has."""
    assert home
    if case.referred is None:
        return
    source, index = case.opened(root), root.parent / "index"
    index_source(source, index, workers=1)
    found = inventory_of(source)
    unread = [row.pattern for row in found.left_out]
    unread += [f"**/{each.place}" for each in found.features if None in each.shape]
    paths = {*filter(Path.is_file, root.rglob("*"))} - {p for n in unread for p in root.glob(n)}
    kinds = {(*p.parts[-3:-1], p.suffix): p for p in sorted(paths)}
    for number, path in enumerate(kinds.values()):
        before = path.stat()
        os.utime(path, ns=(1, 1))
        copy = shutil.copytree(index, root.parent / f"{number}")  # no file of it is checked yet
        with pytest.raises(SeqRecordError) as caught:
            read_packed(copy)
        assert caught.value.file == str(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def read_packed(place: Path) -> None:
    with seqrecord.open(place) as dataset:
        for episode in dataset.episodes.values():
            for number in range(len(episode)):
                _ = episode[number]


def test_a_damaged_episode_is_skipped_and_converted_later(
    case: Case, root: Path, original: tuple[Path, Episodes]
) -> None:
    sound, records = (root / case.file).read_bytes(), root.parent / "records"
    case.damage_episode(root)
    source = case.opened(root)
    keys = [info.key for info in source.episodes()]
    assert keys == [*original[1]]
    check_refused(source, [case.bad], file=root / (case.named or case.file))
    others = tuple(key for key in keys if key != case.bad)
    report = seqrecord.convert(source, records, workers=1, skip_bad_episodes=True)
    assert (report.written, [bad.key for bad in report.bad]) == (others, [case.bad])
    (root / case.file).write_bytes(sound)
    source = case.opened(root)
    report = seqrecord.convert(source, records, workers=1, mode="append")
    assert (report.written, report.skipped) == ((case.bad,), others)
    check_packed(case, records, source, original[1])


def test_any_damage_is_a_source_error_or_goes_unseen(
    case: Case, root: Path, thorough: bool
) -> None:
    """Bytes of a file are changed, mostly in its head, or it is cut."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    rng, refused, rounds = random.Random(0), 0, 60 if thorough else 4
    for number in range(rounds):
        path = rng.choice(paths)
        whole = path.read_bytes()
        data = bytearray(whole[: rng.randrange(len(whole))] if number % 3 == 2 else whole)
        for _ in range(rng.randint(1, 4) if data else 0):
            data[rng.randrange(min(len(data), 12_000))] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(data)
        source = case.opened(root)
        try:
            source.schema()
            for info in source.episodes():
                assert read_all(source, info) == info.num_frames
        except SourceError as error:
            assert error.file is not None  # noqa: PT017 - it may go unseen
            refused += 1
        path.write_bytes(whole)
    assert refused > rounds / 10


def test_a_named_pipe_is_refused_without_blocking(case: Case, root: Path) -> None:
    (root / case.file).unlink()
    os.mkfifo(root / case.file)

    def read() -> None:
        source = case.opened(root)
        read_all(source, next(info for info in source.episodes() if info.key == case.bad))

    with pytest.raises(SourceError) as caught:
        read()
    assert caught.value.file in (str(root / (case.named or case.file)), str(root))
    empty = root.parent / "empty"
    empty.mkdir()
    kind = next(n for n in format_names() if n.startswith(case.source.lower()[:-6]))
    with pytest.raises(SourceError):
        open_source(empty, format=kind, **case.options).episodes()


def test_a_missing_package_is_named(
    case: Case, original: tuple[Path, Episodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, install in case.packages.items():
        with monkeypatch.context() as patch:
            for name in [n for n in sys.modules if n.split(".")[0] == package.split(".")[0]]:
                patch.setitem(sys.modules, name, None)
            patch.setitem(sys.modules, package, None)
            source = case.opened(original[0])  # detected without the package
            with pytest.raises(SeqRecordError, match=f"pip install {install}"):
                everything(source)


def check_packed(case: Case, records: Path, source: Source, expected: Episodes) -> None:
    """Check episodes of a dataset, in any order."""
    with seqrecord.open(records) as dataset:
        assert {*dataset.episodes} == {*expected}
        for info in source.episodes():
            episode = dataset.episodes[info.key]
            assert dict(episode.metadata) == dict(info.metadata)
            assert (len(episode), episode.fps) == (info.num_frames, info.fps)
            case.assert_frames((episode[i] for i in range(len(episode))), expected[info.key])


FAST = ("lerobot with video", "folders", "mcap")  # converted by two processes in fast tests


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_conversion_by_two_processes_equals_the_source(tmp_path: Path, name: str) -> None:
    case, root = CASES[name], tmp_path / "originals"
    root.mkdir()
    expected = case.write(root)
    source = case.opened(root, keep_encoded=bool(case.kept))
    report = seqrecord.convert(source, tmp_path / "records", workers=2)
    assert report.written == tuple(expected)
    check_packed(case, tmp_path / "records", case.opened(root), expected)
