"""Declared counts are compared with the data; files of other types are named in errors."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import LeftOut, inventory_of
from tests.formats.cases import upload
from tests.formats.format_cases.mcap import CAMERA, MS, START, recording
from tests.formats.test_mcap import KINDS, write
from tests.kit.bags import STORE, imu, write_bag, write_mcap
from tests.kit.command_line import fail
from tests.kit.source_faults import frames_of

YAML = "metadata.yaml"


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def bag(root: Path, *, sqlite: bool = False) -> Path:
    write_bag(root / "run", recording(), sqlite=sqlite)
    return root / "run"


def packed(root: Path, to: Path, **options: Any) -> seqrecord.Dataset:
    seqrecord.convert(open_source(root, clock=CAMERA, **options), to, workers=1)
    return seqrecord.open(to)


@pytest.mark.parametrize("sqlite", [False, True])
def test_a_valid_bag_with_and_without_metadata(tmp_path: Path, *, sqlite: bool) -> None:
    folder = bag(tmp_path / "bags", sqlite=sqlite)
    with packed(tmp_path / "bags", tmp_path / "one") as dataset:
        [before] = dataset.episodes.values()
        frames = [before[i]["log_time"] for i in range(len(before))]
        [inventory] = dataset.inventories
        assert inventory.format == "mcap"
        assert inventory.left_out_data == ()
        assert "rosbag2 folder" in inventory.reason
        places = {each.name: each.place for each in inventory.features}
        assert places["camera.image_raw"] == CAMERA
        assert places["imu.data.orientation"] == "/imu/data orientation"
    (folder / YAML).unlink()
    with packed(tmp_path / "bags", tmp_path / "two") as dataset:
        [after] = dataset.episodes.values()
        assert [after[i]["log_time"] for i in range(len(after))] == frames


def file_of(folder: Path) -> Path:
    [path] = [each for each in folder.iterdir() if each.suffix in (".mcap", ".db3")]
    return path


def list_more(folder: Path, name: str) -> None:
    edited(folder / YAML, f"- {file_of(folder).name}", f"- {file_of(folder).name}\n  - {name}")


def remove_all(folder: Path) -> None:
    write_mcap(folder.with_name("other.mcap"), recording())
    file_of(folder).unlink()


def compress(folder: Path) -> None:
    path = file_of(folder)
    list_more(folder, f"{path.name}.zstd")
    packed_file = path.with_name(f"{path.name}.zstd")
    packed_file.write_bytes(b"\x28\xb5\x2f\xfd" + path.read_bytes())


def declare_compression(folder: Path, mode: str) -> None:
    text = (folder / YAML).read_text()
    lines = ["compression_format", "compression_mode"]
    kept = [line for line in text.splitlines() if line.split(":")[0].strip() not in lines]
    more = f"  compression_format: zstd\n  compression_mode: {mode}\n"
    (folder / YAML).write_text("\n".join(kept) + "\n" + more)


def count_more(folder: Path, topic: str = "") -> None:
    """Of one topic, or in total."""
    count = len([each for each in recording() if topic in ("", each[0])])
    text = (folder / YAML).read_text()
    at = text.index(f"name: {topic}") if topic else 0
    change = text[at:].replace(f"message_count: {count}", f"message_count: {count + 7}", 1)
    (folder / YAML).write_text(text[:at] + change)


def metadata(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / YAML).write_text(text)


NONE, OTHER = "invalid metadata of a rosbag2 recording", "number of messages differs"
CONVERT = r"`ros2 bag convert.*got: .*zstd"
BAGS: list[tuple[Callable[[Path], object], str, str]] = [  # change, message, file in the error
    (lambda folder: list_more(folder, "b.mcap"), r"missing.*expected: b\.mcap", YAML),
    (remove_all, "missing file", YAML),
    (compress, r"Zstandard: unpack it .`zstd -d", ".zstd"),
    (lambda folder: declare_compression(folder, "FILE"), CONVERT, ""),
    (lambda folder: declare_compression(folder, "MESSAGE"), CONVERT, ""),
    (count_more, f"{OTHER}.*expected: .*messages", YAML),
    (lambda folder: count_more(folder, CAMERA), f"{OTHER}.*expected: .*messages", YAML),
    *((metadata(text), NONE, "") for text in ("", "[", "rosbag2_bagfile_information: 3")),
    (metadata("a: !!python/name:os"), NONE, ""),
]


@pytest.mark.parametrize("sqlite", [False, True])
def test_a_bag_that_differs_from_its_metadata(tmp_path: Path, *, sqlite: bool) -> None:
    sound = bag(tmp_path / "sound", sqlite=sqlite)
    for number, (change, match, file) in enumerate(BAGS):
        root = tmp_path / f"{number}"
        change(Path(shutil.copytree(sound, root / "run")))
        with pytest.raises(SourceError, match=match) as caught:
            packed(root, tmp_path / f"x{number}")
        assert str(caught.value.file).endswith(file), number
    root = tmp_path / "on the command line"
    count_more(Path(shutil.copytree(sound, root / "run")))
    source = ("--src", root, "--source-option", f"clock={CAMERA}")
    assert OTHER in fail("write", *source, "--dst", tmp_path / "y", "--quiet")


def test_files_not_listed_in_the_metadata_are_in_the_inventory(tmp_path: Path) -> None:
    folder = bag(tmp_path / "bags")
    write_mcap(folder / "stray_7.mcap", recording())
    (folder / "notes.csv").write_text("1")
    found = inventory_of(open_source(tmp_path / "bags", clock=CAMERA))
    assert LeftOut("run/stray_7.mcap", 1, "not listed in metadata.yaml") in found.left_out
    assert LeftOut("run/notes.csv", 1, "no reader") in found.left_out
    assert "--strict" in fail(
        *("write", "--src", tmp_path / "bags", "--dst", tmp_path / "x", "--strict"),
        *("--source-option", f"clock={CAMERA}"),
    )


def test_a_database_with_a_log_that_is_not_merged(tmp_path: Path) -> None:
    folder = bag(tmp_path / "bags", sqlite=True)
    [path] = folder.glob("*.db3")
    path.with_name(path.name + "-shm").write_bytes(b"x")
    for ending, command in (("-wal", "wal_checkpoint"), ("-journal", "quick_check")):
        log = path.with_name(path.name + ending)
        log.touch()  # an empty log
        with packed(tmp_path / "bags", tmp_path / f"empty{ending}") as dataset:
            assert not any(".db3" in each.pattern for each in dataset.inventories[0].left_out)
        log.write_bytes(b"x" * 100)
        before = sorted(folder.iterdir())
        with pytest.raises(SourceError, match=f"`sqlite3 {path.name} 'PRAGMA {command}") as caught:
            packed(tmp_path / "bags", tmp_path / f"x{ending}")
        assert (caught.value.file, caught.value.got) == (str(path), "100 bytes")
        assert sorted(folder.iterdir()) == before
        log.unlink()


def test_mcap_statistics_are_compared_with_the_messages(tmp_path: Path) -> None:
    """A file with fewer messages than its statistics declare."""
    from mcap.reader import make_reader

    path = write_mcap(tmp_path / "run.mcap", recording(), enable_crcs=False)
    data, count = path.read_bytes(), len(recording())
    with path.open("rb") as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert summary.statistics.message_count == count
    at = data.rindex(count.to_bytes(8, "little"))
    path.write_bytes(data[:at] + (count + 3).to_bytes(8, "little") + data[at + 8 :])
    with pytest.raises(SourceError, match="file's statistics") as caught:
        packed(path, tmp_path / "x")
    assert caught.value.expected == f"{count + 3} messages of all topics"
    assert caught.value.got == count


def test_unread_topics_are_in_the_inventory(tmp_path: Path) -> None:
    more = [("/imu/late", START + MS * i, imu(range(10))) for i in range(4)]
    write_mcap(tmp_path / "a.mcap", recording())
    write_mcap(tmp_path / "b.mcap", sorted([*recording(), *more], key=lambda each: each[1]))
    found = inventory_of(
        open_source(tmp_path, clock=CAMERA, features=["camera.image_raw", "log_time"])
    )
    assert (
        LeftOut("topic /imu/late", 4, "missing in the first recording", "messages")
        in found.left_out
    )
    chosen = [each for each in found.left_out if each.pattern == "topic /imu/data"]
    assert [each.reason for each in chosen] == ["not selected by features= or map="]
    assert not chosen[0].is_data


def test_empty_topics_and_attachments_are_in_the_inventory(tmp_path: Path) -> None:
    def add_records(writer: Any) -> None:
        name = next(message.__msgtype__ for topic, _, message in recording() if topic == CAMERA)
        text = STORE.generate_msgdef(name, ros_version=2)[0]
        number = writer.register_schema(name, "ros2msg", text.encode())
        writer.register_channel("/camera/other", "cdr", number)
        writer.add_attachment(0, 0, "calibration.yaml", "text/yaml", b"fx: 1")
        writer.add_metadata("robot", {"name": "arm"})

    path = write_mcap(tmp_path / "run.mcap", recording(), add=add_records)
    source = open_source(path, clock=CAMERA)
    assert LeftOut("topic /camera/other", 0, "empty topic", "messages", False) in (
        inventory_of(source).left_out
    )
    assert len(frames_of(source)) == 5
    for asked in ({"features": ["camera.other"]}, {"map": {"image": "/camera/other"}}):
        with pytest.raises(SourceError, match="has no message") as caught:
            open_source(path, clock=CAMERA, **asked).schema()
        assert caught.value.got == "/camera/other"
    found = inventory_of(source).left_out
    assert LeftOut("attachments of MCAP", 1, "no reader", "records") in found
    assert LeftOut("metadata records of MCAP", 1, "no reader", "records", False) in found


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_an_error(tmp_path: Path, kind: str, thorough: bool) -> None:
    write(tmp_path, recording(), kind)
    [path] = [each for each in tmp_path.rglob("*") if each.suffix in (".mcap", ".db3", ".bag")]
    whole = path.read_bytes()
    for share in (0.2, 0.5, 0.9, 0.999) if thorough else (0.5, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(SourceError) as caught:
            packed(tmp_path, tmp_path / f"{share}")
        assert caught.value.file is not None


# --- types of files ----------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


TYPES: dict[str, tuple[bytes, str]] = {
    "run.mcap.zstd": (b"\x28\xb5\x2f\xfd1234", "Zstandard.*zstd -d"),
    "run.rosbag": (b"#ROSBAG V2.0\n123", "ROS 1 bag.*rename it to .bag"),
    "data.bin": (LFS, "Git LFS pointer.*git lfs pull"),
    "data.gz": (gzip.compress(b"1"), "gzip"),
    "data.tgz": (gzip.compress(bytes(1024)), "gzip.*tar -xzf data.tgz"),
    "data.pkl": (b"\x80\x04", "pickle, which is never loaded"),
}


def test_unsupported_file_types_are_named(tmp_path: Path) -> None:
    for name, (data, message) in TYPES.items():
        folder = tmp_path / name / "deeper"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(data)
        for path in (tmp_path / name, folder / name):
            with pytest.raises(SourceError, match=message):
                open_source(path)


def test_git_lfs_pointers_are_named(tmp_path: Path, memory_url: str) -> None:
    names = ("a.mcap", "a.hdf5", "a.tar", "a.mp4", "run/image/000000.png", "run/state.npy")
    places = []
    for number, name in enumerate(names):
        root = tmp_path / f"{number}"
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(LFS)
        places.append((root, root / name))
    url: Any = upload(tmp_path / "2", memory_url)
    for place, file in (*places, (url, f"{url}/a.tar")):
        message = fail("write", "--src", place, "--dst", tmp_path / "x")
        assert all(part in message for part in ("Git LFS pointer", "git lfs pull", str(file)))
