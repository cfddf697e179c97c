"""The command line: effects, output and errors of each command."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

import seqrecord
from seqrecord import SeqRecordError
from tests.kit.command_line import COMMAND, fail, main, run
from tests.kit.datasets import flip, write_small
from tests.kit.processes import Program, run_python
from tests.kit.trees import make_frames, write_v1

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path)


@pytest.fixture(scope="module")
def kept_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by tests that only read it."""
    return write_tree(tmp_path_factory.mktemp("tree"))


def write_tree(folder: Path) -> Path:
    for number in range(2):
        write_v1(folder / f"originals/cave/Easy/P00{number}", make_frames(number, 3))
    return folder / "originals"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_small(tmp_path / "records")
    return tmp_path / "records"


def test_write_and_append(tree: Path) -> None:
    result = run("write", "--src", f"{tree}/", "--workers", 1)
    destination = tree.with_name("originals-records")
    assert f"{destination}: wrote 2 episodes, 6 frames in" in result.stdout
    assert "the dataset: 2 episodes, 6 frames in 1 record file" in result.stdout
    assert "6/6 frames" in result.stderr
    assert "MB/s, committing" in result.stderr
    with seqrecord.open(destination) as dataset:
        assert list(dataset.episodes) == ["cave/Easy/P000", "cave/Easy/P001"]
        frame, read = make_frames(1, 3)[2], dataset.episodes["cave/Easy/P001"][2]
        assert {n: a.tolist() for n, a in read.items()} == {n: a.tolist() for n, a in frame.items()}
    write_v1(tree / "cave" / "Easy" / "P002", make_frames(2, 2))
    assert "add to it with append" in fail("write", "--src", tree, "--workers", 1)
    result = run("write", "--src", tree, "--workers", 1, "--append")
    assert "wrote 1 episode, 2 frames" in result.stdout
    assert "2 already present" in result.stdout
    with seqrecord.open(destination) as dataset:
        assert [len(episode) for episode in dataset.episodes.values()] == [3, 3, 2]


def test_write_selects_features_and_episodes(tree: Path, tmp_path: Path) -> None:
    write_v1(tree / "cave" / "Hard" / "P000", make_frames(7, 2))
    options = ["--features", "depth_left, image_left", "--features", "pose_left"]
    options += ["--source-option", "difficulty=Hard"]
    options += ["--codec", "raw", "--codec", "depth_left=small"]
    sizes = ["--chunk-frames", 1, "--cameras", "left", "--quiet"]
    result = run("write", "--src", tree, "--dst", tmp_path / "d", *options, *sizes)
    assert result.stdout == ""
    assert "left out cave/Easy/*/pose_left.txt: 2 files" in result.stderr
    with seqrecord.open(tmp_path / "d") as dataset:
        assert list(dataset.features) == ["depth_left", "image_left", "pose_left"]
        assert list(dataset.episodes) == ["cave/Hard/P000"]
        assert dataset.contents.index.groups[0].chunk_frames.tolist() == [1]
        depth = dataset.features["depth_left"]
        assert dataset.features["image_left"].codec == ()
        assert depth.codec == () or depth.nbytes < 1024


def test_write_takes_a_default_codec_and_codecs_by_feature(tmp_path: Path) -> None:
    write_v1(tmp_path / "t" / "a" / "Easy" / "P000", make_frames(0, 2, size=(32, 40)))

    def chains(*codecs: str, keep: bool = False) -> dict[str, Any]:
        destination = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        more = [part for codec in codecs for part in ("--codec", codec)]
        more += ["--keep-encoded"] if keep else []
        run("write", "--src", tmp_path / "t", "--dst", destination, "--workers", 1, *more)
        with seqrecord.open(destination) as dataset:
            return {name: list(spec.codec) for name, spec in dataset.features.items()}

    balanced, raw, fast = chains(), chains("raw"), chains("fast")
    zstd, text = [{"id": "zstd", "level": 1}], '[{"id": "zstd", "level": 1}]'
    jpeg = {"id": "seqrecord.image", "format": "jpeg", "quality": 90}
    assert raw == {name: [] for name in raw}
    assert chains("depth_left=raw", "image_left=jpeg") == {
        **balanced,
        "depth_left": [],
        "image_left": [jpeg],
    }
    assert chains("fast", "mask=raw") == {**fast, "mask": []}
    assert chains(f"seg_left={text}", "raw") == {**raw, "seg_left": zstd}
    assert chains(text, "mask=raw") == {**dict.fromkeys(raw, zstd), "mask": []}
    kept = chains("fast", "mask=raw", keep=True)
    images = {name: kept[name] for name in ("image_left", "image_right")}
    assert [chain[0]["format"] for chain in images.values()] == ["png", "png"]
    assert kept == {**fast, **images, "mask": []}
    options = ["--features", "image_left,image_right", "--codec", "jpeg:quality=75", "--codec"]
    options += ["image_right=raw", "--workers", "1", "--dst", str(tmp_path / "jpeg")]
    run("write", "--src", tmp_path / "t", *options)
    with seqrecord.open(tmp_path / "jpeg") as dataset:
        assert [spec.codec for spec in dataset.features.values()] == [
            ({**jpeg, "quality": 75},),
            (),
        ]


def test_write_names_the_option_to_skip_bad_episodes(tree: Path) -> None:
    easy, destination = tree / "cave" / "Easy", tree.with_name("originals-records")
    bad = easy / "P000" / "image_left" / "000001_left.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    line = fail("write", "--src", tree, "--workers", 1, "--quiet")
    assert str(bad) in line
    assert "episode: cave/Easy/P000" in line
    (easy / "P000" / "depth_left" / "000001_left_depth.npy").unlink()
    line = fail("write", "--src", tree, "--workers", 1, "--quiet", "--resume")
    assert "--resume --skip-bad-episodes" in line
    assert "expected: 3 files, frames 0 to 2, as in image_left/; got: 2 files, frame 1 miss" in line
    options = ["--workers", 1, "--quiet", "--resume", "--skip-bad-episodes"]
    first, second = run("write", "--src", tree, *options).stderr.splitlines()
    assert first == "skipped 1 bad episode:"
    assert second.startswith("  cave/Easy/P000: ")
    with seqrecord.open(destination) as dataset:
        assert list(dataset.episodes) == ["cave/Easy/P001"]


def test_write_compares_no_sizes_where_some_are_unknown(small: Path, tmp_path: Path) -> None:
    for names, expected in (
        ("step,pose", r" record file, \S+ \S+ raw in \S+ \S+ \(\S+x\)$"),
        ("step,range", r" record file, \S+ \S+$"),
    ):
        words = ["--dst", tmp_path / names, "--features", names, "--workers", 1]
        assert re.search(expected, run("write", "--src", small, *words).stdout.splitlines()[1])


def test_info_of_a_dataset_and_its_episodes(small: Path) -> None:
    text = run("info", small, "--clip-len", 4).stdout
    assert "clips of 4 frames, stride 1" in text
    assert "depth_left" in text
    options = ["--features", "image_left", "--clip-len", 4, "--batch-size"]
    memory = [
        json.loads(run("info", small, "--json", *options, size).stdout)["clips"]["memory_bytes"]
        for size in (4, 32)
    ]
    assert 4 * 4 * 6 * 8 * 3 < memory[0] < memory[1]
    assert "    memory       at most " in run("info", small, *options, 4).stdout
    value = json.loads(run("info", small, "--json", "--features", "step,pose").stdout)
    assert [feature["name"] for feature in value["features"]] == ["step", "pose"]
    assert (value["clips"], value["num_frames"]) == (None, 17)
    lines = run("info", small, "--episodes", "--clip-len", 3, "--features", "pose").stdout
    assert lines.splitlines() == [
        "episode          frames  clips  metadata",
        'alpha/Easy/P000      11      9  {"difficulty": "Easy", "number": 0, "place": "Ürümqi"}',
        'alpha/Easy/P001       5      3  {"difficulty": "Easy", "number": 1, "place": "Ürümqi"}',
        'beta/Hard/P000        1      0  {"difficulty": "Hard", "number": 2, "place": "Ürümqi"}',
        "3 episodes, 17 frames, 12 clips",
    ]
    lines = run("info", small, "*/P000").stdout
    found = [line.split()[:2] for line in lines.splitlines()[1:]]
    assert found == [["alpha/Easy/P000", "11"], ["beta/Hard/P000", "1"], ["2", "episodes,"]]
    assert run("info", small, "*/P000", "--episodes").stdout == lines
    rows = json.loads(run("info", small, "--episodes", "--json", "alpha/*").stdout)
    assert [row.pop("metadata")["number"] for row in rows] == [0, 1]
    unknown = {"fps": None, "split": None}
    assert rows == [
        {"key": f"alpha/Easy/P00{n}", "num_frames": frames, "num_clips": None, **unknown}
        for n, frames in enumerate((11, 5))
    ]
    assert "the selection has no episode" in fail("info", small, "gamma/*")


def test_info_of_an_episode(small: Path) -> None:
    """As text; JSON is tested in `tests/tools/test_summary.py`."""
    lines = run("info", small, "alpha/Easy/P000", "--clip-len", 4).stdout.splitlines()
    assert lines[0] == "alpha/Easy/P000"
    assert "  frames        11" in lines
    assert "  clips         2" in lines
    assert '   "place": "Ürümqi"' in lines
    assert "unknown episode" in fail("info", small, "alpha/Easy")


def test_folders_without_a_manifest(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert fail("info", tmp_path / "none").startswith("no dataset here: no such folder; file: ")
    assert "neither a manifest nor record files" in fail("info", tmp_path / "empty")
    (dataset / "manifest.json").unlink()
    line = fail("verify", dataset)
    assert "--resume" in line
    assert "`seqrecord reindex`" in line
    [first, *_] = sorted((dataset / "records").iterdir())
    first.rename(first.with_name(f"{first.name}.partial"))  # as after a kill
    line = fail("info", dataset)
    assert "with --resume continues" in line
    assert "reindex" not in line
    for file in (dataset / "records").glob("*.seqrec"):
        file.unlink()
    assert fail("info", dataset) == line
    assert "no record files; `seqrecord write --resume` continues" in fail("reindex", dataset)


def test_verify_clean_and_reindex(dataset: Path) -> None:
    result = run("verify", dataset, "--deep")
    assert "no problem found" in result.stdout
    assert "144 arrays decoded" in result.stdout
    assert run("verify", dataset, "--quiet").output == ""
    left = dataset / "records" / f"00009-{'a' * 32}.seqrec.partial"
    left.write_bytes(b"of an interrupted append")
    assert "note: " in run("verify", dataset).stdout
    assert run("clean", dataset).stdout == f"{dataset}: 0 files removed\n"  # seven days
    path = f"records/{left.stem}"
    for options, summary in (
        (["--older-than", "0", "--dry-run"], "1 file would be removed"),
        (["--older-than=0s"], "1 file removed"),
    ):
        lines = run("clean", dataset, *options).stdout.splitlines()
        assert lines == [path, f"{dataset}: {summary}"]
    assert not left.exists()
    before = seqrecord.open(dataset).fingerprint
    (dataset / "manifest.json").unlink()
    for table in (dataset / "index").iterdir():
        table.unlink()
    assert "`seqrecord reindex`" in fail("info", dataset)
    assert "3 episodes, 17 frames in 3 record files" in run("reindex", dataset).stdout
    assert seqrecord.open(dataset).fingerprint == before
    [file, *_] = sorted((dataset / "records").iterdir())
    for at in (100, file.stat().st_size - 1):
        flip(file, at)
    lines = run("verify", dataset, "--quiet", code=1).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["FormatError", "ChecksumError"]
    assert all(str(file) in line for line in lines)


def test_export(small: Path, tmp_path: Path) -> None:
    command = ["export", small, "alpha/Easy/P000", tmp_path, "--features", "step,mask"]
    result = run(*command)
    folder = tmp_path / "alpha" / "Easy" / "P000"
    assert result.stdout == f"{tmp_path}: 1 episode\n"
    assert "11/11 frames" in result.stderr
    assert np.load(folder / "step.npy").tolist() == [*range(11)]
    assert len([*(folder / "mask").iterdir()]) == 10
    assert "not empty" in fail(*command)
    result = run("export", small, "alpha/*", tmp_path / "all", "--quiet")
    assert (result.stdout, result.stderr) == (f"{tmp_path}/all: 2 episodes\n", "")
    run("write", "--src", tmp_path / "all", "--dst", tmp_path / "again", "--workers", 1)
    with seqrecord.open(tmp_path / "again") as found:
        assert [len(episode) for episode in found.episodes.values()] == [11, 5]


def test_view(small: Path, tmp_path: Path, thorough: bool) -> None:
    picture = tmp_path / "clip.png"
    assert run("view", small, "--features", "step,mask", "-o", picture).stdout == f"{picture}\n"
    with Image.open(picture) as image:
        width = image.width
    options = ["--start", 2, "--clip-len", 3, "--features", "mask,pose"]
    run("view", small, "alpha/Easy/P000", *options, "-o", tmp_path / "clip")
    with Image.open(tmp_path / "clip") as image:
        assert (image.format, image.width < width) == ("PNG", True)
    for name, start in [("clip.svg", b"<?xml"), ("clip.pdf", b"%PDF")][: 1 + thorough]:
        run("view", small, "beta/Hard/P000", "--features", "step", "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


WRONG_USE = [
    ("info {dataset} --versions --batch-size 4", "--versions cannot be combined with --batch-size"),
    ("info {dataset} --versions --samples", "--versions cannot be combined with --samples"),
    (
        "info {dataset} --samples --clip-len 2 --batch-size 4",
        "--batch-size cannot be combined with --samples",
    ),
    ("info {dataset} --budget 48", "--budget requires --samples"),
    ("info {dataset} key --samples", "--samples cannot be combined with KEY or --episodes"),
    ("nothing", "No such command 'nothing'"),
    ("write", "Missing option '--src'"),
    ("write --src {tree} --resume --append", "--resume cannot be combined with --append"),
    ("bench {dataset} --cache-limit many", "not a size: 'many'"),
    ("write --src {tree} --chunk-frames 65537", "65537 is not in the range"),
    ("write --src {tree} --codec raw --codec fast", "two codecs for all"),
    ("write --src {tree} --codec a=raw --codec a=raw", "two values for a"),
    ("write --src {tree} --codec a=[1", "not valid JSON"),
    ("write --src {tree} --features a,,b", "not a list of names"),
    ("write --src /", "--dst is required"),
    ("info {dataset} --batch-size 2", "--batch-size requires --clip-len"),
    ("info {dataset} a --clip-len 2 --batch-size 2", "--batch-size cannot be combined with KEY"),
    ("info {dataset} --clip-len 0", "0 is not in the range"),
    ("info {dataset} --storage-option secret", "expected KEY=VALUE"),
    ("info {dataset} --storage-option a=1 --storage-option a=2", "two values for a"),
    ("clean {dataset} --older-than week", "not a duration"),
    ("clean {dataset} --no-rewrite --min-unused 0.5", "no effect with --no-rewrite"),
    ("doctor {tree} --still 0.5", "--still requires --quality"),
    ("split {dataset} a=0.5 a=0.5", "two values for a"),
    ("edit set-metadata {dataset} k --set a=1 --set a=2", "two values for a"),
    ("edit set-metadata {dataset} k --set a=1 --remove a", "two values for"),
]
MISTAKES = [
    ("write --src {dataset}/none", "no such file or folder"),
    ("write --src {tree} --codec best", "no such codec"),
    ("write --src {tree} --codec image_left=jpeg:q=9", "jpeg takes quality"),
    ("write --src {tree} --codec none=raw", "an unknown feature"),
    ("write --src {tree} --features none", "no such feature"),
    ("write --src {tree} --dst {dataset}", "dataset exists already"),
    ("info {tree}", "no dataset, but originals"),
    ("info az:///path", "an az:// URL without container"),
    ("info {dataset} --features none", "no such feature"),
    ("info {dataset} --storage-option a=b", "a local path does not take"),
    ("verify {tree}", "no dataset, but originals"),
    ("reindex {tree}", "expected the folder of a dataset, not of originals"),
    ("clean {tree}", "no dataset here"),
    ("export {dataset} none {tree}", "unknown episode"),
    ("view {dataset} --start 11", "extends beyond its episode"),
    ("view {dataset} --clip-len 99", "extends beyond its episode"),
    ("view {dataset} -o {dataset}/none/clip.png", "No such file or directory"),
    ("view {dataset} -o {dataset}/clip.txt", "unknown image format"),
]


def test_usage_errors_are_one_line(kept_tree: Path, small: Path) -> None:
    for words, message in WRONG_USE:
        line = fail(*words.format(tree=kept_tree, dataset=small).split(), code=2)
        assert message in line
        assert "--help" in line
    for words, message in MISTAKES:
        assert message in fail(*words.format(tree=kept_tree, dataset=small).split())


def test_no_option_is_ignored_if_it_is_given_twice() -> None:
    def commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from commands(command, (*words, name))
            else:
                yield (*words, name), command

    found = 0
    for words, command in commands(main, ()):
        for option in command.params:
            if isinstance(option, click.Option) and not (option.multiple or option.is_flag):
                name, found = option.opts[-1], found + 1
                message = fail(*words, name, "1", name, "1", code=2)
                assert f"{name} is given twice" in message, words
    assert found > 50


@pytest.fixture
def heeds_hangup() -> Iterator[None]:
    """SIGHUP is not ignored, as it is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeds_hangup")
def test_errors_of_commands_are_one_line() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/data/x")
    raised: list[tuple[BaseException | signal.Signals, int, str]] = [
        (full, 1, "No space left on device; file: /data/x"),
        (KeyboardInterrupt(), 130, "interrupted"),
        *((number, 128 + number, "interrupted") for number in (signal.SIGTERM, signal.SIGHUP)),
        (SeqRecordError("two\nlines"), 1, "two lines"),
    ]
    for error, code, text in raised:
        for words in (["fail"], ["fail", "--debug"]):
            result = CliRunner().invoke(failing(error), words)
            assert result.exit_code == code
            *before, last = result.stderr.strip().splitlines()
            assert last == f"seqrecord: error: {text}"
            assert ("Traceback (most recent call last):" in before) is ("--debug" in words)
    result = CliRunner().invoke(failing(ZeroDivisionError()), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError), "a defect keeps its traceback"


def failing(error: BaseException | signal.Signals) -> Any:
    """A command line whose only command raises an error, or gets a signal."""

    @click.command()
    @click.option("--debug", is_flag=True)
    def fail(debug: bool) -> None:
        if isinstance(error, BaseException):
            raise error
        for _ in range(2):
            signal.raise_signal(error)

    return type(main)(commands={"fail": fail})


def test_storage_options_reach_the_filesystem() -> None:
    seen: dict[str, Any] = {}

    class Remembering(MemoryFileSystem):  # type: ignore[misc]
        protocol = "remembering"
        cachable = False

        def __init__(self, **options: Any) -> None:
            super().__init__()
            seen.update(options)

    fsspec.register_implementation("remembering", Remembering, clobber=True)
    options = ["key=a=b", "anon=true", "connections=8", 'text="8"', "list=[1]"]
    given = [word for option in options for word in ("--storage-option", option)]
    assert "no dataset here" in fail("info", "remembering://nowhere", *given)
    assert seen == {"key": "a=b", "anon": True, "connections": 8, "text": "8", "list": "[1]"}


def test_help_and_version() -> None:
    text = run().stdout
    for command in "write info verify reindex clean split edit merge export".split():  # noqa: SIM905
        assert f"\n  {command} " in text
        assert "--debug" in run(command, "--help").stdout
    assert run("--version").stdout == f"seqrecord, version {seqrecord.__version__}\n"


def test_no_command_imports_torch(tree: Path, tmp_path: Path) -> None:
    """One process runs all commands; importing torch would take seconds."""
    script = f"""
import sys
import time
from tests.kit.command_line import main
def run(*words):
    try:
        main(list(words))
    except SystemExit as end:
        assert not end.code, words
    assert "torch" not in sys.modules, words
run("--version")
# Of a core's time, however long it waits for the core: mean 0.15 s, standard deviation 0.01 s.
assert time.process_time() < 2
records = {str(tree.with_name("originals-records"))!r}
run("write", "--src", {str(tree)!r}, "--workers", "1")
run("info", records, "--clip-len", "2")
run("verify", records, "--deep")
run("reindex", records)
run("clean", records)
run("split", records, "train=0.5", "val=0.5")
run("export", records, "cave/Easy/P000", {str(tmp_path / "out")!r})
run("view", records, "--features", "pose_left", "-o", {str(tmp_path / "clip.png")!r})
"""
    run_python("-c", script, timeout=200)


_WAITING = """
import os, signal, sys, time
from seqrecord.cli import main

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if nohup started the tests
file, waits, *words = sys.argv[1:]

def wait(event, arguments):
    if event == "open" and str(arguments[0]) == file:
        os.mkdir(waits)
        while os.path.exists(waits):
            time.sleep(0.01)

sys.addaudithook(wait)
main(words)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_a_signal_keeps_finished_episodes(number: int, tree: Path, tmp_path: Path) -> None:
    """The second episode blocks at one of its files until the signal is sent."""
    destination, waits = tmp_path / "records", tmp_path / "waits"
    [file] = tree.glob("cave/Easy/P001/depth_left/000001_*")
    words = ["write", "--workers", "1", "--src", str(tree), "--dst", str(destination)]
    command = [sys.executable, "-c", _WAITING, str(file), str(waits), *words]
    process = Program(
        command,
        tmp_path / "log",
        ENVIRONMENT,
        lambda _: waits.exists() and [*destination.glob("records/*.notes")],
    )
    os.kill(process.pid, number)
    waits.rmdir()
    assert process.wait() == 128 + number, process.output
    assert "Traceback" not in process.output
    assert process.output.splitlines()[-1] == (
        "seqrecord: error: interrupted; the same command with --resume continues after the "
        "finished episodes"
    )
    assert "`seqrecord write --resume` continues an interrupted write" in fail("info", destination)
    result = run("write", "--src", tree, "--dst", destination, "--workers", 1, "--resume")
    assert "wrote 1 episode, 3 frames" in result.stdout
    assert "1 already present" in result.stdout
    run("write", "--src", tree, "--dst", tmp_path / "whole", "--workers", 1)
    whole, resumed = seqrecord.open(tmp_path / "whole"), seqrecord.open(destination)
    assert whole.fingerprint == resumed.fingerprint


def test_output_cut_by_a_pipe(small: Path) -> None:
    """A separate process runs `-m seqrecord`, without warnings at import."""
    words = [*COMMAND[:1], "-W", "error", *COMMAND[1:], "info", str(small), "--json"]
    command = ["bash", "-c", f"{shlex.join(words)} | head -c 1"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr
