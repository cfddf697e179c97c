"""Store and loader work without the other parts, which a copy of the package may lack."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from seqrecord import SeqRecordWriter
from tests.formats.all_cases import indexed, made
from tests.kit.processes import run_python
from tests.kit.video_data import moving
from tests.project.source_code import PACKAGE
from tests.project.test_parts import may_import
from tests.store.test_golden import GOLDEN

pytestmark = pytest.mark.usefixtures("home")

OPTIONAL = [
    "camera",
    "companions",
    "frame_cache",
    "recipes",
    "video",
    "in_place",
    "cloud",
    "formats",
    "robots",
    "cuda",
    "tools",
]

USE = """
import pkgutil, shutil, subprocess, sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path

import numpy as np
import seqrecord
from seqrecord.store.storage.opening import open_storage

folder, lacking, dependent = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split()
assert Path(seqrecord.__file__).is_relative_to(folder), seqrecord.__file__
for module in pkgutil.walk_packages(seqrecord.__path__, "seqrecord."):
    if module.name != "seqrecord.__main__":
        try:
            import_module(module.name)
        except ImportError as error:
            assert module.name.split(".")[1] in dependent, (module.name, error)
            named = error.name or str(error)
            assert any(f"seqrecord.{part}" in named or f"`{part}`" in named for part in lacking)

for public in [seqrecord, *map(import_module, ("seqrecord.types", "seqrecord.sources"))]:
    for name in public.__all__:
        try:
            getattr(public, name)
        except seqrecord.errors.MissingPackageError as error:
            assert any(f"`{part}`" in str(error) for part in lacking), error


def check_missing(call, *places):
    for place in places:
        try:
            call(place)
        except seqrecord.errors.MissingPackageError as error:
            assert any(f"lacks its part `{part}`" in str(error) for part in lacking), error
        else:
            raise AssertionError("no error")

def read_frame(place):
    with seqrecord.open(place) as dataset:
        return next(iter(dataset.episodes.values()))[0]

def write_film(place):
    with seqrecord.SeqRecordWriter(place, codecs={"image": "h264"}) as writer:
        with writer.episode("a") as episode:
            episode.append({"image": np.zeros((24, 32, 3), np.uint8)})

indexes = [*(folder / "indexes").iterdir()]
assert len(indexes) == 2
if {"formats", "in_place"} & {*lacking}:  # loaded by name
    (folder / "original").mkdir()
    (folder / "original/pose_left.txt").touch()
    check_missing(seqrecord.open, folder / "original")
    check_missing(lambda place: seqrecord.open_source(place), folder / "original")
if "in_place" in lacking:
    check_missing(read_frame, *indexes)
else:
    assert read_frame(folder / "indexes/folders")
if "video" in lacking:
    check_missing(read_frame, folder / "film", folder / "indexes/videos")
    check_missing(write_film, folder / "other film")
else:
    assert read_frame(folder / "film")
    assert "in_place" in lacking or read_frame(folder / "indexes/videos")

if "cloud" in lacking:  # loaded by name
    local = {"storage_options": {"mount": True}}
    cache = {"cache_dir": folder / "cache", "cache_limit": "1GiB"}
    for place, options in (
        *((f"{scheme}://bucket/records", {}) for scheme in ("az", "s3", "gs", "hf", "sftp")),
        *((folder / "records", options) for options in (local, {**local, **cache})),
    ):
        for call in (seqrecord.open, open_storage):
            check_missing(partial(call, **options), place)

if "tools" not in lacking:
    main = import_module("seqrecord.cli").main
    for name in main.list_commands(None):
        output = StringIO()
        with redirect_stderr(output), redirect_stdout(output):
            try:
                main([name, "--help"])
            except SystemExit as end:
                failed = end.code
        problems = [f"lacks its part `{part}`" in output.getvalue() for part in lacking]
        assert any(problems) if failed else "Usage" in output.getvalue(), (name, output.getvalue())

path = folder / "records"
with seqrecord.SeqRecordWriter(path, codecs={"image": "raw", "depth": "balanced"}) as writer:
    for key in ("a", "b"):
        with writer.episode(key) as episode:
            for i in range(20):
                image = np.full((24, 32, 3), 100 * (key == "b") + i, np.uint8)
                episode.append({"image": image, "depth": image[..., 0] / np.float32(8)})
with seqrecord.open(path) as dataset:
    assert dataset.episodes["b"][3]["image"][0, 0, 0] == 103

options = {"clip_len": 4, "batch_size": 2, "seed": 1}
pipe = seqrecord.SeqRecordPipe(path, **options)
batches = list(pipe)
assert {int(s) for batch in batches for s in batch["start"]} == {*range(17)}
for batch in batches:
    for key, start, image in zip(batch["episode"], batch["start"], batch["image"], strict=True):
        expected = 100 * (key == "b") + int(start) + np.arange(4)
        assert (image[:, 0, 0, 0].numpy() == expected).all()

interrupted = seqrecord.SeqRecordPipe(path, **options)
iterator = iter(interrupted)
for _ in range(5):
    next(iterator)
state = interrupted.state_dict()
iterator.close()
resumed = seqrecord.SeqRecordPipe(path, **options)
resumed.load_state_dict(state)
rest = [batch["start"].tolist() for batch in resumed]
assert rest == [batch["start"].tolist() for batch in batches[5:]]

other = folder / "companion"
with seqrecord.SeqRecordWriter(other, codecs="raw") as writer:
    for key in ("a", "b"):
        with writer.episode(key) as episode:
            for i in range(20):
                episode.append({"number": np.array([i], np.int64)})
texts, text_options = folder / "texts", {"clip_len": 1, "shuffle": False}
if "companions" in lacking:  # loaded by name
    for join in (other, [other], [seqrecord.open(other)], {"number": [1, 2]}):
        check_missing(lambda place: seqrecord.open(place, join=join), path)
    with seqrecord.open(texts) as dataset:
        assert dataset.episodes["e1"][1]["task"] == "öffne die Tür"
        assert "lacks its part `companions`" in str(seqrecord.summarize(dataset))
        check_missing(lambda dataset: dataset.dictionaries, dataset)
        assert dataset.select(["state", "task"]).dictionaries == {}
    check_missing(lambda place: seqrecord.SeqRecordPipe(place, **text_options), texts)
    batch = next(iter(seqrecord.SeqRecordPipe(texts, features=["task"], **text_options)))
    assert batch["task"] == ["open the door"], batch
else:
    with seqrecord.open(path, join=other) as dataset:
        batch = next(iter(seqrecord.SeqRecordPipe(dataset, **options)))
        assert (batch["number"][:, 0, 0] == batch["start"]).all()
    if "tools" in lacking:  # loaded by name
        check_missing(lambda place: seqrecord.SeqRecordPipe(place, **text_options), texts)
    else:
        batch = next(iter(seqrecord.SeqRecordPipe(texts, **text_options)))
        assert batch["task_embedding"][0].shape == (13, 2), batch

clip = seqrecord.SeqRecordMapDataset(path, clip_len=4)[3]
assert clip["image"].shape == (4, 24, 32, 3)
sources = {name: seqrecord.SeqRecordPipe(path, clip_len=4) for name in ("one", "two")}
mix = seqrecord.SeqRecordMix(sources, batch_size=2)
assert {name for batch in mix for name in batch["dataset"]} == {"one", "two"}

if "frame_cache" in lacking:  # loaded by name
    cache = seqrecord.FrameCache(folder / "frames", "1GiB")
    check_missing(lambda place: seqrecord.SeqRecordPipe(place, **options, frame_cache=cache), path)

if lacking == ["companions"]:  # edits need it for a feature of another dataset alone
    shutil.copytree(path, folder / "edited")
    for arguments in (["delete", str(folder / "edited"), "a"], ["add", str(path), "x"]):
        output = StringIO()
        with redirect_stderr(output), redirect_stdout(output):
            try:
                main(["edit", *arguments, *["--from", str(path)] * (arguments[0] == "add")])
            except SystemExit as end:
                failed = end.code
        assert failed == (arguments[0] == "add"), output.getvalue()
    assert "lacks its part `companions`" in output.getvalue()
    with seqrecord.open(folder / "edited") as dataset:
        assert [*dataset.episodes] == ["b"]

mix_file = folder / "mix.yaml"
mix_file.write_text("sources: {a: {location: records}}")
if "recipes" in lacking:  # loaded by name
    check_missing(partial(seqrecord.SeqRecordMix.from_file, **options), mix_file)
    if "tools" not in lacking:  # whose functions import it
        view_page = import_module("seqrecord.viewer").view_page
        check_missing(lambda place: view_page(place, folder / "page.html"), mix_file)
        for arguments in ([str(mix_file)], [str(path), "--samples", "{every: 4}"]):
            output = StringIO()
            with redirect_stderr(output):
                try:
                    main(["info", *arguments])
                except SystemExit as end:
                    assert end.code == 1, output.getvalue()
            [line] = output.getvalue().splitlines()
            assert line.startswith("seqrecord: error: this seqrecord lacks its part `recipes`")
else:
    summary = seqrecord.SeqRecordMix.from_file(mix_file, **options).summarize()
    assert [source.name for source in summary.sources] == ["a"]

if "cuda" in lacking:  # loaded by name
    for device in ("cuda", "cpu"):
        for make in (
            lambda: seqrecord.SeqRecordPipe(path, **options, device=device),
            lambda: seqrecord.SeqRecordMix(sources, batch_size=2, device=device),
        ):
            try:
                make()
            except seqrecord.errors.MissingPackageError as error:
                assert "lacks its part `cuda`" in str(error), error
            else:
                raise AssertionError("no error")

steps = [seqrecord.RandomCrop((16, 20)), seqrecord.HorizontalFlip(0.5)]
cropped = next(iter(seqrecord.SeqRecordPipe(path, **options, clip_transform=steps, camera=False)))
assert cropped["image"].shape == (2, 4, 16, 20, 3)
assert {"crop", "flipped"} < cropped.keys()
if "camera" in lacking:  # loaded by name
    for loader in (seqrecord.SeqRecordPipe, seqrecord.SeqRecordMapDataset):
        check_missing(partial(loader, clip_len=4, camera=True), path)

if "tools" in lacking:
    command = [sys.executable, "-m", "seqrecord", "info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("seqrecord: error: this seqrecord lacks its part `tools`"), line
elif not {"formats", "video", "cloud"} & {*lacking}:
    assert seqrecord.verify(path, deep=True).ok

[record] = (path / "records").glob("*.seqrec")
content = bytearray(record.read_bytes())
at = content.index(bytes([103]) * 100)
content[at] ^= 1
record.write_bytes(content)
try:
    seqrecord.open(path).episodes["b"][3]
except seqrecord.errors.ChecksumError:
    print("done")
"""


def run_without(parts: list[str], folder: Path) -> None:
    """Copy the package without some parts, and use the rest in a process.

    Modules of parts that may import a missing part, by the table, may need it.
    """
    shutil.copytree(PACKAGE, folder / "seqrecord", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("folders", "videos"):  # one copies values, the other one has references only
        indexed(made(folder / "originals" / name, name), name, folder / "indexes" / name)
    film = SeqRecordWriter(folder / "film", codecs={"image": "h264"})
    with film, film.episode("a") as episode:
        for image in moving(4):
            episode.append({"image": image})
    shutil.copytree(GOLDEN / "texts", folder / "texts")
    for part in parts:
        shutil.rmtree(folder / "seqrecord" / part)
    dependent = {part for part, imports in may_import().items() if imports & {*parts}}
    lists = " ".join(parts), " ".join(dependent)
    done = run_python("-c", USE, folder, *lists, cwd=folder, environment={"PYTHONPATH": ""})
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("part", OPTIONAL)
@pytest.mark.slow
def test_the_rest_works_without_a_part(part: str, tmp_path: Path) -> None:
    run_without([part], tmp_path)


def test_store_and_loader_work_alone(tmp_path: Path) -> None:
    run_without(OPTIONAL, tmp_path)
