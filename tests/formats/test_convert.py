from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import convert
from seqrecord.edit import clean, delete_episodes, rewrite_files, trim_episodes
from seqrecord.errors import DestinationError, NotFoundError, SchemaError, SourceError
from seqrecord.sources import EpisodeInfo
from seqrecord.types import Progress
from tests.kit.made_source import EndlessSource, MadeSource
from tests.kit.processes import Program, run_python, wait_for
from tests.kit.tiny import read_all, same_frames

# Some of these tests fork a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

SMALL: dict[str, Any] = {"chunk_frames": 4, "max_file_size": "60kB"}

# Two workers are processes with slow imports.
WORKER_COUNTS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fingerprint of `MadeSource()`."""
    return convert(
        MadeSource(), tmp_path_factory.mktemp("whole"), workers=1, **SMALL
    ).manifest.fingerprint


def check(destination: Path, source: MadeSource, *, without: tuple[int, ...] = ()) -> None:
    infos = [info for i, info in enumerate(source.episodes()) if i not in without]
    found = read_all(destination)
    assert list(found) == [info.key for info in infos]
    assert same_frames(found, {info.key: [*source.frames(info)] for info in infos})
    with seqrecord.open(destination) as dataset:
        metadata = [episode.metadata for episode in dataset.episodes.values()]
    assert metadata == [info.metadata for info in infos]
    clean(destination, older_than=0)
    leftovers = [p.name for p in destination.rglob("*") if p.suffix in (".partial", ".notes")]
    assert leftovers == []


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_dataset_does_not_depend_on_the_workers(
    tmp_path: Path, expected: str, workers: int
) -> None:
    seen: list[Progress] = []
    report = convert(MadeSource(), tmp_path, workers=workers, progress=seen.append, **SMALL)
    assert report.manifest.fingerprint == expected
    assert report.written == tuple(info.key for info in MadeSource().episodes())
    assert (report.skipped, report.bad) == ((), ())
    check(tmp_path, MadeSource())
    frames = [p.done for p in seen]
    assert frames == sorted(frames)
    assert seen[-1] == Progress(54, 54, 54 * MadeSource().schema().frame_nbytes)
    assert len(seen) < 54


class _Repeats(ThreadPoolExecutor):
    """Keeps its tasks."""

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Any:
        self.task = partial(fn, *args, **options)
        return super().submit(fn, *args, **options)


def test_a_late_duplicate_of_a_job_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster runs a job again, after the conversion's commit and later edits."""
    with _Repeats(1) as executor:
        convert(MadeSource(), tmp_path, executor=executor, **SMALL)
        [*deleted, last] = seqrecord.open(tmp_path).episodes
        delete_episodes(tmp_path, deleted)
        rewrite_files(tmp_path, min_unused=0.01)
        clean(tmp_path, older_than=-1)
        there = {*tmp_path.glob("records/*.seqrec")}
        executor.task()
    late = {*tmp_path.glob("records/*.seqrec")} - there
    with seqrecord.SeqRecordWriter(tmp_path, mode="resume") as writer:
        assert writer.completed_episodes == {last}
    manifest = seqrecord.reindex(tmp_path)
    assert manifest.num_episodes == 1
    assert f"ignored {len(late)} record file" in caplog.text
    assert all(file.name in caplog.text for file in late)
    clean(tmp_path, older_than=-1)
    assert {*tmp_path.glob("records/*.seqrec")} == there


def executor_of(kind: str) -> Executor:
    if kind == "threads":
        return ThreadPoolExecutor(3)
    return ProcessPoolExecutor(2, multiprocessing.get_context(kind))


@pytest.mark.parametrize("kind", ["threads", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_convert_with_an_executor(tmp_path: Path, expected: str, kind: str) -> None:
    with executor_of(kind) as executor:
        report = convert(MadeSource(), tmp_path, executor=executor, **SMALL)
    assert report.manifest.fingerprint == expected
    check(tmp_path, MadeSource())


# Bad episodes


@WORKER_COUNTS
def test_bad_episodes_are_skipped_and_listed_in_order(tmp_path: Path, workers: int) -> None:
    source = MadeSource(bad={6: 1, 2: 9, 0: 0}, lies={4: 5, 5: 12})
    report = convert(source, tmp_path / "d", workers=workers, skip_bad_episodes=True, **SMALL)
    assert [bad.key for bad in report.bad] == [f"made/00{i}" for i in (0, 2, 4, 5, 6)]
    assert "made to fail" in report.bad[0].error
    assert "expected: 6; got: 5" in report.bad[2].error
    assert "expected: 11; got: 12 or more" in report.bad[3].error
    assert report.written == ("made/001", "made/003", "made/007")
    check(tmp_path / "d", source, without=(0, 2, 4, 5, 6))

    class Good(MadeSource):
        def episodes(self) -> list[EpisodeInfo]:
            return [info for info in super().episodes() if info.key in report.written]

    clean = convert(Good(), tmp_path / "clean", workers=1, **SMALL)
    assert report.manifest.fingerprint == clean.manifest.fingerprint


@pytest.mark.parametrize("workers", ["1", "fork", pytest.param("2", marks=pytest.mark.slow)])
def test_bad_episode_raises_and_resume_continues(
    tmp_path: Path, expected: str, workers: str
) -> None:
    with executor_of("fork") if workers == "fork" else contextlib.nullcontext() as executor:
        options: dict[str, Any] = {"executor": executor} if executor else {"workers": int(workers)}
        with pytest.raises(SourceError, match="made to fail") as caught:
            convert(MadeSource(bad={4: 2}), tmp_path, **options, **SMALL)
    assert (caught.value.episode, caught.value.frame) == ("made/004", 2)
    with pytest.raises(NotFoundError):
        seqrecord.open(tmp_path)
    with pytest.raises(DestinationError, match="--resume"):
        convert(MadeSource(), tmp_path, **SMALL)
    check_resumes(tmp_path, expected)


def check_resumes(folder: Path, expected: str) -> None:
    """A resume skips finished episodes and completes the dataset."""
    assert not list(folder.glob("records/*.partial"))
    report = convert(MadeSource(), folder, mode="resume", workers=1, **SMALL)
    assert report.skipped
    assert report.manifest.fingerprint == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupt_leaves_complete_files(tmp_path: Path, expected: str, workers: int) -> None:
    """Two workers would never end without the interrupt."""
    endless = EndlessSource(folder=str(tmp_path / "calls"))
    Path(endless.folder).mkdir()
    before = multiprocessing.active_children()

    def interrupt(progress: Progress) -> None:
        if progress.done > 26 if workers == 1 else endless.is_endless():
            raise KeyboardInterrupt

    source = MadeSource() if workers == 1 else endless
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "d", workers=workers, progress=interrupt, **SMALL)
    assert multiprocessing.active_children() == before
    check_resumes(tmp_path / "d", expected)


def test_bad_episodes_only(tmp_path: Path) -> None:
    source = MadeSource((3, 2), bad={0: 1, 1: 1})
    with pytest.raises(SourceError, match="made to fail"):
        convert(source, tmp_path / "d", workers=1, skip_bad_episodes=True)
    assert not (tmp_path / "d/manifest.json").exists()


@dataclass(frozen=True)
class _Odd(MadeSource):
    """Yields frames of episode 1 that differ from the schema."""

    lengths: Sequence[int] = (3, 3, 2)
    how: str = ""

    def episodes(self) -> list[EpisodeInfo]:
        infos = super().episodes()
        odd = {
            "empty": EpisodeInfo("made/001", 0, {"number": 1}),
            "metadata": EpisodeInfo("made/001", 3, {"number": object()}),
            "mapping": EpisodeInfo("made/001", 3, ["number"]),  # type: ignore[arg-type]
            "key": EpisodeInfo("../001", 3, {"number": 1}),
            "twice": infos[0],
        }
        infos[1] = odd.get(self.how, infos[1])
        return [] if self.how == "none" else infos

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        for frame in super().frames(info):
            odd: dict[str, dict[str, Any]] = {
                "extra": {"extra": np.zeros(3)},
                "dtype": {"image": frame["image"].astype(np.int8)},
                "shape": {"image": frame["image"][1:]},
            }
            yield frame | (odd.get(self.how, {}) if info.key == "made/001" else {})


@pytest.mark.parametrize("how", ["extra", "dtype", "shape", "empty"])
def test_frames_that_differ_from_the_schema_make_a_bad_episode(tmp_path: Path, how: str) -> None:
    source = _Odd(how=how)
    with pytest.raises(SourceError) as caught:
        convert(source, tmp_path / "a", workers=1)
    assert caught.value.episode == "made/001"
    report = convert(source, tmp_path / "b", workers=1, skip_bad_episodes=True)
    assert [bad.key for bad in report.bad] == ["made/001"]


def test_invalid_lists_of_episodes(tmp_path: Path) -> None:
    odd = {"metadata": "made/001", "mapping": "made/001", "key": "../001", "twice": "", "none": ""}
    for how, key in odd.items():
        source = _Odd(how=how)
        with pytest.raises(SourceError):
            convert(source, tmp_path / "d", workers=1)
        assert not (tmp_path / "d").exists()
        if key:
            report = convert(source, tmp_path / how, workers=1, skip_bad_episodes=True)
            assert report.written == ("made/000", "made/002")
            assert [bad.key for bad in report.bad] == [key]
            assert key in report.bad[0].error
    too_long = MadeSource((3, 1 << 40, 2), lies={1: 1})  # raised before the first frame
    with pytest.raises(SourceError) as caught:
        convert(too_long, tmp_path / "a", workers=1)
    assert (caught.value.episode, caught.value.got) == ("made/001", f"{1 << 40} frames")


def test_invalid_settings(tmp_path: Path) -> None:
    for options in ({"workers": 0}, {"workers": -2}, {"mode": "w"}):
        with pytest.raises(DestinationError):
            convert(MadeSource((3,)), tmp_path / "d", **options)
        assert not (tmp_path / "d").exists()


# Append and resume


@WORKER_COUNTS
def test_append_adds_new_episodes(tmp_path: Path, expected: str, workers: int) -> None:
    convert(MadeSource(MadeSource().lengths[:3]), tmp_path, workers=1, **SMALL)
    report = convert(MadeSource(), tmp_path, mode="append", workers=workers, **SMALL)
    assert report.skipped == ("made/000", "made/001", "made/002")
    assert report.manifest.fingerprint == expected
    again = convert(MadeSource(), tmp_path, mode="append", workers=1, **SMALL)
    assert again.written == ()
    assert again.manifest.fingerprint == expected


def test_an_append_logs_episodes_of_another_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert(MadeSource((3, 4)), tmp_path, workers=1)
    report = convert(MadeSource((3, 5, 2)), tmp_path, mode="append", workers=1)
    assert report.skipped == ("made/000", "made/001")
    text = "skipped 1 existing episode with another number of frames in the source: made/001;"
    assert text in caplog.text
    caplog.clear()
    delete_episodes(tmp_path, "made/001")
    trim_episodes(tmp_path, "made/000", slice(1, None))  # which the source cannot tell
    assert convert(MadeSource((3, 5)), tmp_path, mode="append", workers=1).written == ("made/001",)
    assert "another number of frames" not in caplog.text


def test_resume_refuses_other_codecs_and_features(tmp_path: Path) -> None:
    class Other(MadeSource):
        def schema(self) -> seqrecord.Schema:
            return super().schema().select(["flow"])

    with pytest.raises(SourceError):
        convert(MadeSource(bad={4: 2}), tmp_path, workers=1, codecs="fast", **SMALL)
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(SchemaError, match="other codecs"):
            convert(MadeSource(), tmp_path, mode="resume", codecs="small", **SMALL)
        with pytest.raises(SchemaError, match="other features"):
            convert(Other(), tmp_path, mode="resume", **SMALL)
    convert(MadeSource(), tmp_path, mode="resume", workers=1, **SMALL)
    check(tmp_path, MadeSource())


def test_resume_with_new_episodes(tmp_path: Path) -> None:
    """Finished episodes keep their positions; new episodes must not collide with them."""

    @dataclass(frozen=True)
    class Shifted(MadeSource):
        def episodes(self) -> list[EpisodeInfo]:
            return [EpisodeInfo("early/one", 4, {"number": 99}), *super().episodes()]

    with pytest.raises(SourceError):
        convert(MadeSource(bad={4: 2}), tmp_path, workers=1, **SMALL)
    report = convert(Shifted(), tmp_path, mode="resume", workers=1, **SMALL)
    assert report.manifest.num_episodes == 9
    assert list(seqrecord.open(tmp_path).episodes)[-5:-3] == ["early/one", "made/004"]


def test_resume_without_episodes_and_after_all_episodes(tmp_path: Path, expected: str) -> None:
    for skipped in (0, 8):
        report = convert(MadeSource(), tmp_path, mode="resume", workers=1, **SMALL)
        assert len(report.skipped) == skipped
        assert report.manifest.fingerprint == expected


# Killed workers and interrupts


@pytest.mark.parametrize("kind", ["fork", pytest.param("", marks=pytest.mark.slow)])
def test_killed_worker_is_reported(tmp_path: Path, expected: str, kind: str) -> None:
    deadly = MadeSource(bad={4: 0}, error=SystemExit())
    with executor_of(kind) if kind else contextlib.nullcontext() as executor:
        with pytest.raises(DestinationError, match=r"killed, or out of memory.*--resume"):
            convert(deadly, tmp_path, workers=2, executor=executor, **SMALL)
        report = convert(MadeSource(), tmp_path, mode="resume", workers=1, **SMALL)
    assert report.manifest.fingerprint == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["create", "resume"])
def test_script_without_a_main_guard_gets_an_error(tmp_path: Path, mode: str) -> None:
    """Each worker imports the script, which would start workers again."""
    script = tmp_path / "pack.py"
    script.write_text(
        "import sys\n"
        "from seqrecord import convert\n"
        "from tests.kit.made_source import MadeSource\n"
        "convert(MadeSource(), sys.argv[1], workers=2, mode=sys.argv[2], max_file_size=60_000)\n"
    )
    failed = run_python(script, tmp_path / "d", mode, status=1)
    errors = [line for line in failed.stderr.splitlines() if "Error: " in line]
    ours = {line.split(":")[0] for line in errors if "seqrecord" in line}
    assert ours == {"seqrecord.errors.DestinationError"}
    assert 'if __name__ == "__main__":' in errors[-1]
    assert "out of memory" not in failed.stderr
    assert "RuntimeError" not in failed.stderr
    assert not list((tmp_path / "d").rglob("*.seqrec"))


_SCRIPT = """
import sys
from seqrecord import convert
from tests.kit.made_source import EndlessSource

if __name__ == "__main__":
    convert(
        EndlessSource(delay=0.001, folder=sys.argv[3]), sys.argv[1], workers=int(sys.argv[2]),
        chunk_frames=4, max_file_size=60_000,
    )
    print("all is converted", flush=True)
"""


class Converting:
    """A process that converts an `EndlessSource` into `folder`."""

    def __init__(self, tmp_path: Path, workers: int) -> None:
        self.source, self.folder = EndlessSource(folder=str(tmp_path / "calls")), tmp_path / "d"
        Path(self.source.folder).mkdir()
        words = [str(self.folder), str(workers), self.source.folder]
        self.process = Program([sys.executable, "-c", _SCRIPT, *words], tmp_path / "log")

    def end(self, kill: Callable[[int, int], None], sign: int) -> str:
        """Output after a signal to the process, or to its group by `os.killpg`."""
        self.children = _children(self.process.pid)
        kill(self.process.pid, sign)
        try:
            self.process.wait()
        finally:
            self.process.kill()  # if it ignored the signal
        return self.process.output


def _stat(pid: int) -> tuple[str, int]:
    """State and parent of a process; a zombie counts as ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "Z", 0
    return fields[0], int(fields[1])


def _alive(pid: int) -> bool:
    return _stat(pid)[0] != "Z"


def _children(pid: int) -> list[int]:
    """All living descendants of a process."""
    every = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    mine = [child for child in every if _stat(child)[1] == pid and _alive(child)]
    return mine + [deeper for child in mine for deeper in _children(child)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_all_processes_and_resume_continues(
    tmp_path: Path, expected: str, workers: int
) -> None:
    running = Converting(tmp_path, workers)
    wait_for(running.source.is_endless, 200)
    err = running.end(os.killpg, signal.SIGINT)  # as a terminal does
    assert "all is converted" not in err
    assert running.process.wait() == -signal.SIGINT or "KeyboardInterrupt" in err
    assert err.count("Traceback") <= 2  # the parent's, no worker's
    wait_for(lambda: not any(map(_alive, running.children)), 200)
    assert list(running.folder.glob("records/*.seqrec"))
    check_resumes(running.folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_workers_of_a_killed_parent_end(tmp_path: Path, expected: str, late: bool) -> None:
    running = Converting(tmp_path, 2)

    def has_begun() -> bool:
        return running.source.is_endless() if late else any(running.folder.glob("*/*.partial"))

    wait_for(has_begun, 200)
    running.end(os.kill, signal.SIGKILL)
    assert len(running.children) >= 2
    # While the workers still end.
    report = convert(MadeSource(), running.folder, mode="resume", workers=1, **SMALL)
    assert report.manifest.fingerprint == expected
    wait_for(lambda: not any(map(_alive, running.children)), 200)


@pytest.mark.slow
def test_memory_stays_within_a_few_chunks(tmp_path: Path) -> None:
    """200 MB of incompressible frames, in chunks of 6 MB."""
    script = f"""
import numpy as np
from seqrecord import convert, FeatureSpec, Schema
from seqrecord.sources import EpisodeInfo

class Big:
    def __init__(self, length):
        self.length = length
    def schema(self):
        return Schema([FeatureSpec("x", np.dtype("u1"), (1000, 1500))])
    def episodes(self):
        return [EpisodeInfo(str(i), self.length, {{}}) for i in range(4)]
    def frames(self, info):
        for i in range(self.length):
            yield {{"x": np.random.default_rng(i).integers(0, 256, (1000, 1500), np.uint8)}}

def status(name):  # ru_maxrss begins at that of pytest, which started this
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

convert(Big(2), {str(tmp_path / "warm")!r}, workers=1, chunk_frames=1, max_file_size=1)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
convert(Big(34), {str(tmp_path / "d")!r}, workers=1, chunk_frames=4, codecs="fast")
print(status("VmHWM") - before)
"""
    assert 0 < int(run_python("-c", script).stdout) < 8 * 6_000_000
