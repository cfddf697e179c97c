"""Originals changed, moved or swapped after indexing never give stale values."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import errors, open_source
from seqrecord.errors import ClipError, SeqRecordError, StorageError
from seqrecord.lerobot import LeRobotDataset
from seqrecord.sources import inventory_of
from seqrecord.store.reading.dataset import open_packed
from tests.formats.all_cases import CASES, indexed, made
from tests.formats.cases import index_source
from tests.formats.format_cases.sequences import write_kitti
from tests.formats.in_place_cases import frames_of
from tests.kit.command_line import fail, run
from tests.kit.lerobot_data import column, rewrite
from tests.kit.lerobot_stand_in import install
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.processes import in_fork, run_code
from tests.kit.services.gcs_stub import GcsStub
from tests.kit.video_file_data import pictures, write_video

ACTION, LEROBOT = "observation.state", "lerobot with video"
FOLDERS = CASES["folders"]


pytestmark = pytest.mark.usefixtures("home")


def change_table(root: Path) -> Path:
    [path] = root.glob("data/*/*.parquet")
    rewrite(path, column(ACTION, lambda values: [[v + 1 for v in row] for row in values]))
    return path


def change_array(root: Path, name: str = "a/action.npy") -> Path:
    np.save(root / name, np.load(root / name) + 1)
    return root / name


def values(dataset: seqrecord.Dataset) -> Any:
    return [episode[:][ACTION] for episode in dataset.episodes.values()]


def copied_index(index: Path) -> Path:
    """A copy of an index: this process has checked the first index's originals already."""
    number = len([*index.parent.glob(f"{index.name}-copy-*")])
    return shutil.copytree(index, index.with_name(f"{index.name}-copy-{number}"))


def original_and_index(tmp_path: Path, name: str = LEROBOT) -> tuple[Path, Path]:
    root = made(tmp_path / "original", name)
    return root, indexed(root, name, tmp_path / "index")


@pytest.mark.parametrize("name", [LEROBOT, "folders"])
def test_index_with_stale_copied_values_is_refused(name: str, tmp_path: Path) -> None:
    """`test_a_changed_file_is_noticed_in_place` has all files of all formats."""
    root, index = original_and_index(tmp_path, name)
    seqrecord.open(index).close()
    assert seqrecord.verify(index).ok
    changed = change_table(root) if name == LEROBOT else change_array(root, "b/state/3.npy")
    with pytest.raises(StorageError, match="`seqrecord index SRC -o DST`") as caught:
        seqrecord.open(index)
    assert caught.value.file == str(changed)
    assert any(each.file == str(changed) for each in seqrecord.verify(index).problems)
    run("info", index)  # reads no values
    if name == LEROBOT:
        assert "has changed since it was indexed" in fail("stats", index)
        assert "index it again" in fail("write", "--src", index, "--dst", tmp_path / "x")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), SeqRecordError)
    changed.unlink()
    with pytest.raises(errors.NotFoundError, match="is missing"):
        seqrecord.open(copied_index(index))


@pytest.mark.parametrize("below", ["sequences", "sequences/00"])
def test_changed_files_above_the_root_are_noticed(below: str, tmp_path: Path) -> None:
    write_kitti(tmp_path / "kitti")
    root, poses = tmp_path / "kitti" / below, tmp_path / "kitti/poses/00.txt"
    index_source(open_source(root), tmp_path / "index", workers=1)
    seqrecord.open(tmp_path / "index").close()
    lines = poses.read_text().splitlines()
    poses.write_text("\n".join((lines[0], lines[0], lines[2])))
    with pytest.raises(StorageError, match="`seqrecord index SRC -o DST`") as caught:
        seqrecord.open(tmp_path / "index")
    assert caught.value.file == str(poses)


def test_lerobot_class_reads_changed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    root = made(tmp_path / "original", LEROBOT)
    before = LeRobotDataset("a/b", root=root)[0][ACTION].numpy()
    change_table(root)
    np.testing.assert_equal(LeRobotDataset("a/b", root=root)[0][ACTION].numpy(), before + 1)


def test_append_to_stale_values_is_refused(tmp_path: Path) -> None:
    root, index = original_and_index(tmp_path, "folders")
    shutil.copytree(root / "a", root / "c", copy_function=shutil.copy2)
    index_source(FOLDERS.opened(root), index, workers=1, mode="append")
    assert len(seqrecord.open(index).episodes) == 3
    path = change_array(root)
    shutil.copytree(root / "b", root / "d", copy_function=shutil.copy2)
    with pytest.raises(SeqRecordError, match="nothing can be appended") as caught:
        index_source(FOLDERS.opened(root), index, workers=1, mode="append")
    assert caught.value.file == str(path)


def test_append_replaces_stored_states_of_files(tmp_path: Path) -> None:
    """New LeRobot episodes change metadata files; episodes indexed before stay valid."""
    root, index = unpack(tmp_path / "original", "lerobot_video_v21"), tmp_path / "index"
    paths = (root / "meta/episodes.jsonl", root / "meta/info.json")
    before = [path.read_text() for path in paths]
    paths[0].write_text("\n".join(before[0].splitlines()[:-1]))
    two = {"total_episodes": 2, "total_frames": 9, "splits": {"train": "0:2"}}
    paths[1].write_text(json.dumps(json.loads(before[1]) | two))
    index_source(open_source(root), index, workers=1)
    for path, text in zip(paths, before, strict=True):
        path.write_text(text)
    index_source(open_source(root), index, workers=1, mode="append")
    assert len(seqrecord.open(copied_index(index)).episodes) == 3


def test_several_original_roots_need_a_location_each(tmp_path: Path) -> None:
    """Two originals whose files have equal paths and sizes."""
    roots, both = [tmp_path / name / "original" for name in "ab"], tmp_path / "both"
    for name, root in zip("ab", roots, strict=True):
        folder = root / "run" / "depth"
        folder.mkdir(parents=True)
        for number in range(6):
            np.save(folder / f"{number}.npy", np.full((40, 50), number + 100 * ord(name), "<f4"))
        index_source(open_source(root), tmp_path / f"index-{name}", workers=1)
    seqrecord.edit.rename_episodes(tmp_path / "index-b", {"run": "other"})
    seqrecord.edit.merge_datasets([tmp_path / "index-a", tmp_path / "index-b"], both)
    one, two = map(str, roots)
    with seqrecord.open(both) as dataset:
        assert dataset.episodes["other"][0]["depth"][0, 0] == 100 * ord("b")
    moved = [root.rename(tmp_path / f"moved-{root.parent.name}") for root in roots]
    for single in (moved[0], str(moved[0])):
        with pytest.raises(ClipError, match=r"several originals.*as a dict") as caught:
            seqrecord.open(both, originals=single)
        assert one in str(caught.value.expected)
    with pytest.raises(StorageError, match="the file differs from the indexed one"):
        seqrecord.open(both, originals={one: moved[1], two: moved[0]})
    with seqrecord.open(both, originals={one: moved[0], two: moved[1]}) as dataset:
        for key, name in (("run", "a"), ("other", "b")):
            assert dataset.episodes[key][0]["depth"][0, 0] == 100 * ord(name)
    with pytest.raises(ClipError, match="has an unknown root"):
        seqrecord.open(both, originals={"/elsewhere": moved[0]})


@pytest.mark.parametrize("name", [LEROBOT, "droid", "folders"])
def test_moved_original_is_accepted(name: str, tmp_path: Path) -> None:
    root, index = original_and_index(tmp_path, name)
    with seqrecord.open(index) as dataset:
        before = frames_of(dataset)
    copy = shutil.copytree(root, tmp_path / "copy")  # with new modification times
    shutil.rmtree(root)
    with seqrecord.open(index, originals=copy) as dataset:
        np.testing.assert_equal(frames_of(dataset), before)
    large = max(filter(Path.is_file, copy.rglob("*")), key=lambda path: path.stat().st_size)
    data = large.read_bytes()
    for damaged, match in ((data[:-1], "."), (bytes(b ^ 1 for b in data), "the indexed one")):
        large.write_bytes(damaged)
        with pytest.raises(StorageError, match=match):
            seqrecord.open(copied_index(index), originals=copy)


def test_file_changed_while_open_is_refused(tmp_path: Path) -> None:
    """A video and an image are overwritten in place."""
    path = write_video(tmp_path / "a.mp4", pictures(60), options={"g": "5"})
    other = write_video(tmp_path / "other.mp4", pictures(60, 99), options={"g": "5"})
    with seqrecord.open(path) as dataset:
        episode = dataset.episodes["a"]
        assert episode[0]["image"].dtype == np.uint8
        path.write_bytes(other.read_bytes())
        with pytest.raises(StorageError, match="changed") as caught:
            _ = episode[30]
        assert caught.value.file == str(path)
    root, index = original_and_index(tmp_path, "folders")
    with seqrecord.open(index) as dataset:
        _ = dataset.episodes["a"][0]
        np.save(root / "a/depth/1.npy", np.zeros((40, 50), ">f4"))
        with pytest.raises(StorageError, match="changed") as caught:
            _ = dataset.episodes["a"][1]
        assert caught.value.file == str(root / "a/depth/1.npy")


def test_started_code_gets_the_environment_of_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the environment of the test that started the server: each test has its own home."""
    run_code("")
    monkeypatch.setenv("SEQRECORD_HOME", "another")
    assert run_code("import os; print(os.environ['SEQRECORD_HOME'])").stdout == "another\n"


def test_workers_do_not_check_originals_again(tmp_path: Path) -> None:
    """Files are checked once, when the index is opened, not in each worker."""
    root, index = original_and_index(tmp_path)
    pipe = seqrecord.SeqRecordPipe(index, clip_len=1, features=[ACTION])
    change_table(root)
    assert len(list(pickle.loads(pickle.dumps(pipe)))) == len(pipe)
    code = "import seqrecord, sys; seqrecord.SeqRecordPipe(sys.argv[1], clip_len=1)"
    assert "has changed since it was indexed" in run_code(code, index, status=1).stderr


def test_rebuilt_index_is_compared_with_originals(tmp_path: Path) -> None:
    """New files next to the original's files do not matter."""
    root, index = original_and_index(tmp_path, "folders")
    (root / "a" / "README.md").write_text("new")
    (index / "manifest.json").unlink()
    seqrecord.reindex(index)
    seqrecord.open(index).close()
    path = change_array(root)
    with pytest.raises(StorageError, match="has changed") as caught:
        seqrecord.open(index)
    assert caught.value.file == str(path)


def test_resume_with_stale_values_is_refused(tmp_path: Path) -> None:
    root, index = made(tmp_path / "original", "folders"), tmp_path / "index"
    last = sorted((root / "b" / "rgb").iterdir())[-1]
    data = last.read_bytes()
    last.write_bytes(b"")

    def convert(mode: Any) -> None:
        source: Any = FOLDERS.opened(root)
        seqrecord.convert(source.referring(), index, workers=1, in_place=True, mode=mode)

    with pytest.raises(SeqRecordError):
        convert("create")
    last.write_bytes(data)
    path = change_array(root)
    with pytest.raises(SeqRecordError, match="changed after its values were copied") as caught:
        convert("resume")
    assert caught.value.file == str(path)


def test_edits_and_merges_keep_file_states(tmp_path: Path) -> None:
    root, index = original_and_index(tmp_path)
    with seqrecord.open(index) as dataset:  # without videos, no references remain
        videos = [name for name, spec in dataset.features.items() if spec.is_video]
        first = next(iter(dataset.episodes))
    seqrecord.edit.rename_episodes(index, {first: "other"})
    seqrecord.edit.drop_features(index, ["timestamp", *videos])
    seqrecord.edit.clean(index, older_than=-1e3)
    seqrecord.edit.merge_datasets([index], tmp_path / "merged")
    change_table(root)
    for place in (index, tmp_path / "merged"):
        with pytest.raises(StorageError, match="has changed"):
            seqrecord.open(place)
        assert not seqrecord.verify(place).ok
        seqrecord.summarize(place)


def test_changed_original_in_a_bucket(tmp_path: Path, gcs: GcsStub) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    bucket, options = gcs.new_bucket(), gcs.options()
    root = made(tmp_path / "original", LEROBOT)

    def put(path: Path) -> None:
        gcs.put(bucket, f"set/{path.relative_to(root).as_posix()}", path.read_bytes())

    for path in filter(Path.is_file, root.rglob("*.*")):
        put(path)
    url, index = f"gs://{bucket}/set", tmp_path / "index"
    index_source(open_source(url, storage_options=options), index, workers=1)
    external: dict[str, Any] = {"external_options": {"storage_options": options}}
    with seqrecord.open(url, storage_options=options) as dataset:
        before = values(dataset)
    open_packed(index, **external).close()
    gcs.asked.clear()
    open_packed(index, **external).close()
    assert not gcs.asked, "once per process"
    path = change_table(root)
    put(path)
    index = copied_index(index)
    with pytest.raises(StorageError, match="has changed") as caught:
        open_packed(index, **external)
    assert str(caught.value.file).endswith(path.name)
    assert not [each for each in gcs.asked if each.startswith("HEAD") and "set/" in each]
    with seqrecord.open(url, storage_options=options) as dataset:
        np.testing.assert_equal(values(dataset), [rows + 1 for rows in before])


# --- files of equal sizes and times -----------------------------------------------------------


def replace_content(path: Path, data: bytes) -> None:
    """Write other content of the same size; the modification time stays."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_links_that_lead_elsewhere_are_noticed(tmp_path: Path) -> None:
    """Targets of equal sizes and times; links of files, of folders, and through another link."""
    root, away = made(tmp_path / "original", "folders"), tmp_path / "away"
    away.mkdir()
    for name in ("a", "b"):
        (root / name / "depth").rename(away / name)
    for path in away.rglob("*.npy"):
        os.utime(path, ns=(1, 1))
    (away / "current").symlink_to("a")
    (root / "a/depth").symlink_to(away / "current")
    (root / "b/depth").mkdir()
    for path in (away / "b").iterdir():
        (root / "b/depth" / path.name).symlink_to(path)
    index_source(FOLDERS.opened(root), tmp_path / "index", workers=1)
    depths = [np.load(away / name / "1.npy") for name in "ab"]
    with seqrecord.open(tmp_path / "index") as dataset:
        for key, depth in zip("ab", depths, strict=True):
            np.testing.assert_equal(dataset.episodes[key][1]["depth"], depth)
    (away / "current").unlink()
    (away / "current").symlink_to("b")
    (root / "b/depth/1.npy").unlink()
    (root / "b/depth/1.npy").symlink_to(away / "a/1.npy")
    with seqrecord.open(tmp_path / "index") as dataset:
        for key in "ab":
            with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
                _ = dataset.episodes[key][1]
            assert str(caught.value.file).startswith(str(root / key / "depth"))
    lerobot_root = made(tmp_path / "of lerobot", LEROBOT)
    with seqrecord.open(lerobot_root) as dataset:
        before = dataset.episodes["episode_000000"][:][CAMERAS[0]]
    videos = [next(lerobot_root.glob(f"videos/{name}/*/*.mp4")) for name in CAMERAS]
    size = max(video.stat().st_size for video in videos) + 8
    for number, video in enumerate(videos):  # with a free box
        rest = size - video.stat().st_size
        data = video.read_bytes() + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8)
        (away / f"{number}.mp4").write_bytes(data)
        os.utime(away / f"{number}.mp4", ns=(1, 1))
        video.unlink()
    videos[1].symlink_to(away / "1.mp4")
    for number in (0, 1):
        videos[0].unlink(missing_ok=True)
        videos[0].symlink_to(away / f"{number}.mp4")
        with seqrecord.open(lerobot_root) as dataset:
            images = dataset.episodes["episode_000000"][:][CAMERAS[0]]
            assert np.array_equal(images, before) == (number == 0)


def test_new_files_are_compared_by_content(tmp_path: Path, home: Path) -> None:
    """A file written again right after its indexing may keep its size and modification time."""
    root = tmp_path / "videos"
    root.mkdir()
    write_video(root / "a.mp4", pictures(4), options={"g": "2"})
    other = write_video(tmp_path / "b.mp4", pictures(4, 50), options={"g": "2"}).read_bytes()
    data = (root / "a.mp4").read_bytes()
    size = max(len(data), len(other)) + 8
    one, two = (
        each + (size - len(each)).to_bytes(4, "big") + b"free" + bytes(size - len(each) - 8)
        for each in (data, other)
    )
    (root / "a.mp4").write_bytes(one)
    os.utime(root / "a.mp4", (1, 2**31 - 1))  # new, however long the indexing takes
    urls, shown = [], []
    for content in (one, one, two):
        replace_content(root / "a.mp4", content)
        with seqrecord.open(root) as dataset:
            urls.append(dataset.url)
            shown.append(dataset.episodes["a"][:]["image"])
    assert urls[0] == urls[1] != urls[2]
    assert np.array_equal(shown[0], shown[1])
    assert not np.array_equal(shown[0], shown[2])
    tree, index = made(tmp_path / "original", "folders"), tmp_path / "index"
    for path in tree.rglob("*.npy"):
        os.utime(path, (1, 2**31 - 1))
    index_source(FOLDERS.opened(tree), index, workers=1)
    seqrecord.open(index).close()
    depth = tree / "a/depth/1.npy"
    whole = depth.read_bytes()
    replace_content(depth, whole[:-1] + bytes([whole[-1] ^ 1]))
    with seqrecord.open(index) as dataset, pytest.raises(errors.ChecksumError):
        _ = dataset.episodes["a"][1]
    action = (tree / "a/action.npy").read_bytes()
    replace_content(tree / "a/action.npy", action[:-1] + bytes([action[-1] ^ 1]))
    for place in (index, copied_index(index)):
        with pytest.raises(StorageError, match="with the same size and modification time"):
            seqrecord.open(place)


@pytest.mark.slow
def test_old_files_are_not_read_again(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "original", "folders")
    for path in root.rglob("*.*"):
        os.utime(path, ns=(10**18, 10**18))
    index_source(FOLDERS.opened(root), tmp_path / "index", workers=1)
    assert not any(b'"new"' in path.read_bytes() for path in tmp_path.glob("index/externals/*"))
    action = root / "a/action.npy"
    action.write_bytes(action.read_bytes())
    index_source(FOLDERS.opened(root), tmp_path / "again", workers=1)
    [list_id] = [p.stem for p in tmp_path.glob("again/externals/*") if b'"new"' in p.read_bytes()]
    time.sleep(2.1)
    seqrecord.open(tmp_path / "again").close()
    assert (home / "trusted" / list_id).read_text() == "settled"


# --- a home shared by several users ------------------------------------------------------------


def run_as_user(uid: int, work: Callable[[], str]) -> str:
    """Result of `work()` in a process of this user."""

    def as_user() -> str:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        return work()

    return str(in_fork(as_user))


def index_of(root: Path) -> str:
    with seqrecord.open(root) as dataset:
        assert len(dataset.episodes["a"][:]["image"]) == 3
        return dataset.url


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@pytest.fixture
def shared(home: Path) -> Path:
    """A video readable by all users, like the folders above it and above the home."""
    for folder in (home.parent, *home.parent.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    return write_video(home.parent / "a.mp4", pictures(3))


@needs_root
def test_users_of_one_home_have_separate_indexes(home: Path, shared: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    users = (4001, 4002, 4001)
    urls = [run_as_user(uid, lambda: index_of(shared)) for uid in users]
    assert [Path(url).parent for url in urls] == [home / "indexes" / str(uid) for uid in users]
    assert urls[0] == urls[2], "index was not reused"
    assert Path(index_of(shared)).parent == home / "indexes" / "0"


@needs_root
def test_home_of_another_user_is_not_used(home: Path, shared: Path) -> None:
    home.mkdir()
    os.chown(home, 4001, 4001)
    Path(tempfile.gettempdir()).chmod(0o1777)
    mine, theirs = (Path(run_as_user(uid, lambda: index_of(shared))) for uid in (4001, 4002))
    assert mine.parent == home / "indexes"
    assert theirs.name.startswith(mine.name.partition("-")[0])
    assert home not in theirs.parents
    shutil.rmtree(theirs.parents[1])


@needs_root
@pytest.mark.parametrize("foreign", ["all", "files", "mode"])
def test_index_writable_by_other_users_is_not_used(
    foreign: str, home: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = index_of(shared)
    indexes = home / "indexes"
    if foreign == "mode":
        indexes.chmod(0o777)
    else:
        for path in (*indexes.rglob("*"), *([indexes] if foreign == "all" else [])):
            os.chown(path, 4001, 4001)
    other = index_of(shared)
    assert Path(other).parent == indexes / "0"
    assert other != first
    assert str(indexes / "0") in caplog.text
    assert index_of(shared) == other, "index was not reused"


def test_index_made_with_umask_0_is_reused(tmp_path: Path) -> None:
    path, before = write_video(tmp_path / "a.mp4", pictures(3)), os.umask(0)
    try:
        assert index_of(path) == index_of(path)
    finally:
        os.umask(before)


@needs_root
def test_index_made_by_root_is_used(home: Path, shared: Path) -> None:
    made = index_of(shared)
    for folder in (home, home / "indexes", home / "trusted", *Path(made).rglob("*"), Path(made)):
        folder.chmod(folder.stat().st_mode | 0o055)
    for path in home.rglob("*"):
        path.chmod(path.stat().st_mode | 0o044)
    assert run_as_user(4001, lambda: index_of(shared)) == made


@needs_root
def test_trust_list_of_another_user_is_ignored(home: Path, shared: Path) -> None:
    index = home.parent / "index"
    index_source(open_source(shared), index, workers=1)
    for path in (home / "trusted").iterdir():
        os.chown(path, 4001, 4001)
    with pytest.raises(StorageError, match="you did not index it"):
        seqrecord.open(index).episodes["a"][0]


# --- messages -----------------------------------------------------------------------------------


def test_messages_name_the_original_instead_of_its_index(tmp_path: Path) -> None:
    root = tmp_path / "videos"
    root.mkdir()
    write_video(root / "a.mp4", pictures(3))
    with seqrecord.open(root) as dataset:
        index = Path(dataset.url)
        shown = [repr(dataset), repr(dataset.episodes), str(run("info", root).output)]
        for work in (
            lambda: seqrecord.open(root, features=["nothing"]),
            lambda: dataset.episodes["b"],
            lambda: seqrecord.SeqRecordPipe(root, clip_len=9),
            lambda: pickle.loads(pickle.dumps(dataset)).select(["nothing"]),
        ):
            with pytest.raises(SeqRecordError) as caught:
                work()
            shown.append(str(caught.value))
    [path] = (index / "records").iterdir()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 50)
    found = seqrecord.verify(root)
    shown += [str(found), *map(str, found.problems)]
    assert len(shown) > 8
    for text in shown:
        assert str(root) in text
        assert str(index) not in text


def indexed_keys(root: Path, index: Path, **options: Any) -> str:
    source = open_source(root, **options)
    left_out = {row.pattern for row in inventory_of(source).left_out if row.reason == "unreadable"}
    report = index_source(source, index, workers=1, skip_bad_episodes=True)
    return f"{len(report.written)} {len(report.bad)} {' '.join(sorted(left_out))}"


@needs_root
@pytest.mark.parametrize("name", ["folders", LEROBOT])
def test_parts_without_permission_are_left_out_and_listed(name: str, shared: Path) -> None:
    """`lost+found`, a folder that cannot be entered, a file, and a link of another's process."""
    root, uid = made(shared.parent / "set", name), 4001
    options = CASES[name].options
    for path in (root.parent, root, *root.rglob("*")):
        path.chmod(0o755)
    count = indexed_keys(root, shared.parent / "before", **options).partition(" ")[
        0
    ]  # imports, too
    (root / "lost+found").mkdir(mode=0o700)
    (root / "private").mkdir(mode=0o744)
    (root / "secret.bin").touch(mode=0o600)
    (root / "work").symlink_to("/proc/1/cwd")
    home = Path(os.environ["SEQRECORD_HOME"])
    home.chmod(0o777)
    indexes = shared.parent / "indexes"
    indexes.mkdir(mode=0o777)
    indexes.chmod(0o777)
    found = run_as_user(uid, lambda: indexed_keys(root, indexes / "index", **options))
    assert found == f"{count} 0 lost+found private secret.bin work"
    if name == "folders":
        frame = root / "b/depth/3.npy"  # of the last chunk
        frame.unlink()
        frame.symlink_to("/proc/self/fd/777")
        found = run_as_user(uid, lambda: indexed_keys(root, indexes / "again", **options))
        assert found.startswith("1 1 "), "the episode alone is bad"
    root.chmod(0o744)
    with pytest.raises(
        errors.SourceError, match=r"^no permission to list the folder or to enter it"
    ):
        run_as_user(uid, lambda: indexed_keys(root, indexes / "other", **options))
