"""Tar files of WebDataset: samples as frames, errors of broken files."""

from __future__ import annotations

import io
import logging
import pickle
import tarfile
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Source, WebDatasetSource, inventory_of
from tests.formats.format_cases.webdataset import write_samples, write_tar
from tests.kit.datasets import encoded, noise
from tests.kit.source_faults import check_refused


def image(seed: int = 0, kind: str = "png") -> bytes:
    return encoded(noise(4, 5, 3, seed=seed), kind=kind)


def names(frames: list[Any], feature: str = "frame_number") -> list[Any]:
    return [np.asarray(frame[feature]).item() for frame in frames]


def read(source: Source, episode: int = 0) -> list[Any]:
    info = source.episodes()[episode]
    frames = list(source.frames(info))
    assert len(frames) == info.num_frames
    return frames


def test_tars_and_folders_in_tars_are_episodes(tmp_path: Path) -> None:
    write_samples(tmp_path / "part-000000.tar")
    write_samples(tmp_path / "more" / "b.tar", 1, "./kitchen/run_1/")
    source = open_source(tmp_path)
    infos = source.episodes()
    assert [info.key for info in infos] == ["more/b/kitchen/run_1", "part-000000"]
    assert infos[0].metadata["files"]["rgb"] == "kitchen/run_1/{:06d}.rgb.png"
    assert names(read(source), "json") == [f'{{"task": "pick {i}"}}' for i in range(3)]
    assert open_source(tmp_path / "part-000000.tar").episodes()[0].key == "part-000000"


def test_episodes_of_one_tar(tmp_path: Path) -> None:
    files = {f"run_{run}/{n}.jpg": image(10 * run + n, "jpeg") for run in (2, 1) for n in range(3)}
    write_tar(tmp_path / "a.tar", files)
    source = WebDatasetSource(tmp_path, keep_encoded=True)
    assert [info.key for info in source.episodes()] == ["a/run_2", "a/run_1"]
    kept = [frame["jpg"] for frame in read(source, 1)]
    assert kept == [EncodedImage(files[f"run_1/{n}.jpg"]) for n in range(3)]


@pytest.mark.parametrize(
    ("numbers", "bad"), [("212", "2"), ("212123", "12"), ("1221", "1"), ("1213", "1")]
)
def test_an_interleaved_tar_ends_its_own_episodes_only(
    tmp_path: Path, numbers: str, bad: str
) -> None:
    """Parts of a folder are no episode; other folders of the file and other files are read."""
    parts = [f"run_{number}" for number in numbers]
    files = {f"{part}/{n}.jpg": image(n, "jpeg") for n, part in enumerate(parts)}
    write_tar(tmp_path / "a.tar", {**files, "run_9/7.jpg": image(7, "jpeg")})
    write_samples(tmp_path / "b.tar")
    check_refused(
        WebDatasetSource(tmp_path, features=["jpg", "rgb"], sparse=["jpg", "rgb"]),
        [f"a/run_{number}" for number in bad],
        "tar --sort=name",
        file=tmp_path / "a.tar",
        got="earlier samples in a.tar",
    )


@pytest.mark.parametrize("end", ["cut", "no end", "name", "twice"])
@pytest.mark.parametrize(
    ("files", "bad", "good"),
    [
        ("f/0 g/0 f/1", "f", "g"),
        ("f/0 f/1 g/0 h/0 f/2", "f", "g h"),
        ("f/0 f/1 g/0", "g", "f"),
        ("f/0 g/0 f/1 h/0", "f h", "g"),
    ],
)
def test_a_tar_that_ends_in_a_folder(
    tmp_path: Path, files: str, bad: str, good: str, end: str
) -> None:
    """The folder that may continue is no episode; those before it are whole."""
    path, names = tmp_path / "a.tar", [f"{name}.jpg" for name in files.split()]
    more = {"name": ["/x/0.jpg"], "twice": [names[-1].replace(".", ".s.")] * 2}.get(end, [])
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate([*names, *more]):
            info, data = tarfile.TarInfo(name), image(number, "jpeg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        stop = tar.offset
    if end in ("cut", "no end"):
        path.write_bytes(path.read_bytes()[: stop - (700 if end == "cut" else 0)])
    source = WebDatasetSource(tmp_path, features=["jpg"])
    check_refused(source, [f"a/{folder}" for folder in bad.split()], file=path)
    assert {info.key for info in source.episodes()} == {f"a/{f}" for f in f"{bad} {good}".split()}


def test_a_folder_of_a_tar_with_the_name_of_another_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"b/0.jpg": image(0, "jpeg"), "c/0.jpg": image(1, "jpeg")})
    write_tar(tmp_path / "a" / "b.tar", {"0.jpg": image(2, "jpeg")})
    check_refused(WebDatasetSource(tmp_path), ["a/b"], "not consecutive")


def test_unread_fields_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("unpickled",)

    data = pickle.dumps(Bomb())
    endings = ("pyd", "pickle", "state.pkl", "pth", "mp4")
    files = {f"{n}.{e}": data for n in range(2) for e in endings}
    files |= {f"{n}.png": image(n) for n in range(2)}
    files |= {"README": b"", "png": b"", "._0.png": b"junk", "__MACOSX/0.png": b"junk"}
    write_tar(tmp_path / "a.tar", dict(sorted(files.items())))
    with caplog.at_level(logging.WARNING, "seqrecord"):
        source = WebDatasetSource(tmp_path)
        assert len(source.episodes()) == 1
    left_out = ["README", "mp4", "pickle", "png", "pth", "pyd", "state.pkl"]
    assert ", ".join(left_out) in caplog.text
    patterns = [each.pattern.removeprefix("*.tar/") for each in source.account().left_out]
    assert sorted(pattern.removeprefix("*.") for pattern in patterns) == left_out
    assert list(source.schema()) == ["png", "frame_number"]
    assert len(read(source)) == 2
    with pytest.raises(SourceError) as caught:
        WebDatasetSource(tmp_path, features=["pyd"]).schema()
    assert caught.value.got == "pyd"


def test_numbers_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for numbers in ((4, 90), (0, 1, 3), (0, 2, 3), (2, 1, 0), (0, 1, 0)):
        write_tar(path, {f"{n:04d}.{i}.png": image(i) for i, n in enumerate(numbers)})
        source = open_source(tmp_path, sparse="0,1,2")
        with pytest.raises(SourceError, match="allow_gaps=true") as caught:
            list(source.frames(source.episodes()[0]))
        assert (caught.value.episode, caught.value.file) == ("a", str(path))
        for features in (None, ["frame_number"]):
            more: dict[str, Any] = {"sparse": "0,1,2", "features": features}
            assert names(read(open_source(tmp_path, allow_gaps=True, **more))) == [*numbers]


def test_a_tar_changed_after_its_listing(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.png": image(), "1.png": image()})
    source = open_source(tmp_path)
    [info] = source.episodes()
    for files in ({"x.png": image()}, {"run/0.png": image()}):
        write_tar(tmp_path / "a.tar", files)
        with pytest.raises(SourceError) as caught:
            list(source.frames(info))
        assert (caught.value.episode, caught.value.file) == ("a", str(tmp_path / "a.tar"))


def test_the_decimal_point_of_a_time_belongs_to_the_key(tmp_path: Path) -> None:
    times = ["1305031102.175304", "1305031102.211214", "1305031102.243211", "1305031103.1"]
    for prefix, ending in product(("", "left_", "run_1/left-"), ("png", "rgb.png")):
        keys, feature = [f"{prefix}{time}" for time in times], ending.partition(".")[0]
        write_tar(tmp_path / "a.tar", {f"{k}.{ending}": image(n) for n, k in enumerate(keys)})
        source = open_source(tmp_path)
        frames = read(source)
        assert list(source.schema()) == [feature, "frame_number", "frame_name"]
        assert names(frames, "frame_name") == [key.rpartition("/")[2] for key in keys]
        for number, frame in enumerate(frames):
            np.testing.assert_array_equal(frame[feature], noise(4, 5, 3, seed=number))
    write_tar(tmp_path / "a.tar", {f"{t}.png": image() for t in ("5.2000", "5.1000")})
    with pytest.raises(SourceError, match=r"not ascending; .*frame: 1; expected: 5.2 or later"):
        read(open_source(tmp_path))
    assert len(read(open_source(tmp_path, allow_gaps=True))) == 2


def test_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Missing shards, and names from two recordings."""
    present = ("s-000000.tar", "s-000001.tar", "s-000004.tar", "t/x-00001-of-00003.tar")
    for name in (*present, "t/20240131.tar", "t/20250131.tar"):
        write_tar(tmp_path / "shards" / name, {"0.png": image()})
    with caplog.at_level(logging.WARNING, "seqrecord"):
        notes = WebDatasetSource(tmp_path / "shards").account().notes
    assert notes == (
        "2 shards missing: s-000002.tar, s-000003.tar",
        "2 shards missing: x-00000-of-00003.tar, x-00002-of-00003.tar",
    )
    assert "2 shards missing" in caplog.text
    keys = ["a_0000", "a_0001", "b_0002", "b_0003"]
    write_tar(tmp_path / "set" / "two.tar", {f"{key}.png": image() for key in keys})
    write_tar(tmp_path / "set" / "one.tar", {f"{key}.png": image() for key in keys[:2]})
    [note] = inventory_of(open_source(tmp_path / "set")).notes
    assert note.startswith("two: names differ by more than a number (")
    assert "a_000" in note
    assert "b_000" in note


def test_keys_without_order_and_fields_of_numbers(tmp_path: Path) -> None:
    keys = ["n0378_17", "n0144_3", "n0378_2"]
    write_tar(tmp_path / "a.tar", {f"{key}.jpg": image(kind="jpeg") for key in keys})
    frames = read(open_source(tmp_path))
    assert len(read(open_source(tmp_path, features=["frame_name"]))) == 3
    assert (names(frames), names(frames, "frame_name")) == ([0, 1, 2], keys)
    every = [f"{second}.{tenth}.png" for second in (12, 13) for tenth in range(10)]
    write_tar(tmp_path / "a.tar", {name: image() for name in every})
    with pytest.raises(SourceError, match=r"--features 0,1,2.*got: 12.0.png, 12.1.png"):
        open_source(tmp_path).schema()
    assert len(read(open_source(tmp_path, features=["0", "9"]))) == 2


def test_samples_with_a_missing_field(tmp_path: Path) -> None:
    files = {"0.rgb.png": image(), "1.rgb.png": image(), "1.depth.npy": npy(1.5)}
    write_tar(tmp_path / "a.tar", files)
    source = open_source(tmp_path)
    with pytest.raises(SourceError, match="different fields") as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.frame, caught.value.episode) == (1, "a")
    assert "sparse=depth" in str(caught.value.expected)
    source = open_source(tmp_path, sparse="depth")
    assert source.episodes()[0].metadata["frames_without_depth"] == 1
    assert ["depth" in frame for frame in read(source)] == [False, True]


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_sample_without_the_only_field(tmp_path: Path, lacking: int) -> None:
    files = dict[str, bytes]()
    for n in range(3):
        files[f"{n}.rgb.png"] = image()
        if n != lacking:
            files[f"{n}.depth.npy"] = npy(1.5)
    write_tar(tmp_path / "a.tar", files)
    source = open_source(tmp_path, features=["depth"])
    with pytest.raises(SourceError, match="different fields"):
        list(source.frames(source.episodes()[0]))


def test_images_of_both_formats_are_kept(tmp_path: Path) -> None:
    for name, endings in (("a", ("png", "jpg")), ("b", ("jpg", "jpg"))):
        kinds = {"png": "png", "jpg": "jpeg"}
        files = {f"{i}.rgb.{end}": image(i, kinds[end]) for i, end in enumerate(endings)}
        write_tar(tmp_path / f"{name}.tar", files)
    source = WebDatasetSource(tmp_path, keep_encoded=True)
    assert source.schema()["rgb"].codec == ({"id": "seqrecord.image", "format": "any"},)
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        for episode, key in enumerate("ab"):
            want = [frame["rgb"] for frame in read(WebDatasetSource(tmp_path), episode)]
            np.testing.assert_array_equal(dataset.episodes[key][:]["rgb"], want)


# --- broken tars -----------------------------------------------------------------------------


def npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=True)
    return stream.getvalue()


VALUES: dict[str, tuple[str, bytes, bytes]] = {  # a field, and its values in two samples
    "pickled objects": ("x.npy", npy(1.0), npy([{}])),
    "pickled objects first": ("x.npy", npy([{}]), npy([{}])),
    "another dtype": ("x.npy", npy(1.0), npy(1)),
    "another shape": ("x.npy", npy(1.0), npy([1.0])),
    "an array that is cut": ("x.npy", npy([1.0]), npy([1.0])[:-1]),
    "no array": ("x.npy", npy(1.0), b""),
    "a huge array": ("x.npy", npy(1.0), npy(1.0).replace(b"(), }", b"(1099511627776,), }")),
    "an image that is cut": ("rgb.png", image(), image()[:-9]),
    "no image": ("rgb.png", image(), b"\0" * 40),
    "a pointer": ("rgb.png", image(), b"version https://git-lfs.github.com/spec/v1\n"),
    "another format": ("rgb.png", image(), image(kind="jpeg")),
    "no UTF-8": ("txt", b"a", b"\xff"),
    "no number": ("cls", b"7", b"seven"),
    "a number of 70 bits": ("cls", b"7", b"%d" % (1 << 70)),
    "a number of 10,000 digits": ("cls", b"7", b"7" * 10_000),
}


def test_a_broken_value_is_refused_by_name(tmp_path: Path) -> None:
    for name, (ending, one, other) in VALUES.items():
        root = tmp_path / name
        write_tar(root / "bad.tar", {f"run/0.{ending}": one, f"run/1.{ending}": other})
        write_tar(root / "good.tar", {f"0.{ending}": npy(1.0) if "first" in name else one})
        match = "git lfs pull" if "pointer" in name else "."
        check_refused(WebDatasetSource(root), ["bad/run"], match, file=root / "bad.tar" / "run")


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, link
    return member.tobuf(tarfile.GNU_FORMAT)


def damaged(data: bytes) -> dict[str, bytes]:
    """Broken variants of a tar file with three samples `N.png`."""
    end = bytes(1024)
    body = data.rstrip(b"\0")
    body += bytes(-len(body) % 512)
    long_name = "/".join("x" * 50 for _ in range(100))
    members = {
        "a huge file": header("3.png", 1 << 40),
        "a negative size": header("3.png", -512),
        "a negative size of no file": header("3.png", -512, b"V"),
        "a huge name": header("x", 1 << 40, tarfile.GNUTYPE_LONGNAME),
        "a long name": header(f"{long_name}/3.png"),
        "a huge extension": header("x", 1 << 40, tarfile.XHDTYPE),
        "a way out": header("../3.png"),
        "an absolute path": header("/etc/3.png"),
        "no UTF-8": header("\udcff3.png"),
        "a link": header("3.png", 0, tarfile.SYMTYPE, "/etc/passwd"),
        "a device": header("3.png", 0, tarfile.CHRTYPE),
        "holes": header("3.png", 0, tarfile.GNUTYPE_SPARSE),
    }
    return {name: body + member + end for name, member in members.items()} | {
        "cut in a header": data[: 1024 + 100],
        "cut in an image": data[:600],
        "cut between members": data[:1024],
        "without an end": body,
        "another tar behind the end": data + data,
        "a damaged header": data[:1100] + b"#" + data[1101:],
        "no tar": b"x" * 2000,
        "nothing": b"",
    }


def test_a_broken_tar_is_refused_by_name(tmp_path: Path) -> None:
    files = {f"{n}.png": image(n) for n in range(3)}
    write_tar(tmp_path / "a.tar", files)
    write_tar(tmp_path / "b.tar", files)
    bad = tmp_path / "a.tar"
    tracemalloc.start()
    for name, data in damaged(bad.read_bytes()).items():
        bad.write_bytes(data)
        source = WebDatasetSource(tmp_path)
        assert [info.key for info in source.episodes()] == ["a", "b"], name
        match = r"data after the end .*tar --ignore-zeros" if "behind" in name else "."
        check_refused(source, ["a"], match, file=bad)
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
