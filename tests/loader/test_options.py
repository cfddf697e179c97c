"""The loaders' arguments: one checked dataclass, visible to editors, mypy and help()."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    Budget,
    ClipError,
    EngineOptions,
    LoaderOptions,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordNode,
    SeqRecordPipe,
    bench,
)
from seqrecord.loader.pipes.options import ClipOptions, DatasetOptions
from seqrecord.samples import dilate, every, reverse, segments, subset
from seqrecord.tools.profiler.bench import BenchOptions
from tests.kit.datasets import write_dataset, write_small, written_once
from tests.kit.processes import run_python

STREAMING: list[Any] = [SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode]
CALLEES: list[tuple[Any, type[ClipOptions]]] = [
    *((loader, LoaderOptions) for loader in STREAMING),
    (SeqRecordMapDataset, DatasetOptions),
    (bench, BenchOptions),
]


records = written_once(write_small, episodes={"a/Easy": 11, "b/Easy": 9}, missing=False)


@pytest.mark.parametrize(("callee", "options"), CALLEES)
def test_signatures_and_help_have_every_argument(callee: Any, options: type[ClipOptions]) -> None:
    _, *arguments = inspect.signature(callee).parameters.values()
    assert arguments == [*inspect.signature(options).parameters.values()]
    assert {argument.kind for argument in arguments} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(argument.annotation is not inspect.Parameter.empty for argument in arguments)
    defaults = {argument.name: argument.default for argument in arguments}
    assert (defaults["stride"], defaults["clip_len"]) == (None, None)
    assert options(clip_len=2).spec.stride == 1
    shown = pydoc.plain(pydoc.render_doc(callee))
    texts = "\n".join(cls.__doc__ or "" for cls in options.__mro__ if issubclass(cls, ClipOptions))
    for field in fields(options):
        assert f" {field.name}: " in shown.partition("Args:")[2], field.name
        assert texts.count(f"        {field.name}: ") == 1, field.name
    assert "memory_limit: 'int | str | None' = None" in shown or callee is SeqRecordMapDataset
    assert "frames of a clip, N, at most 2^20." in shown
    function = callee if inspect.isfunction(callee) else callee.__init__
    assert (function.__doc__ or "").partition("Args:")[0].strip(), "the text before the arguments"


def test_arguments_have_the_documented_groups() -> None:
    """As in docs/reference; the docstring of `__init__` names each group's first and last one."""
    page = Path(seqrecord.__file__).parents[1] / "docs/reference/loaders.md"
    rows = re.findall(r"^\| .+ \| (`.+) \|$", page.read_text(), re.MULTILINE)
    groups = [re.findall(r"`([a-z_]+)`", row) for row in rows]
    names = list(inspect.signature(LoaderOptions).parameters)
    assert [name for group in groups for name in group] == names
    for loader in STREAMING:
        text = " ".join((inspect.getdoc(loader.__init__) or "").partition("Args:")[0].split())
        for first, *_, last in groups[:-2]:
            assert f"`{first}` to `{last}`" in text


PROGRAM = """
import seqrecord
from seqrecord import NoSuchName  # E: attr-defined
pipe = seqrecord.SeqRecordPipe("records", clip_len=16, batch_size=4, memory_limit="1GiB")
pipe.options.seed + 1
pipe.options.stride + 1  # E: operator
seqrecord.SeqRecordIterableDataset.from_options("records", pipe.options).set_epoch(2)
seqrecord.SeqRecordPipe("records", 16)  # E: call-arg
seqrecord.SeqRecordPipe("records", clip_length=16)  # E: call-arg
seqrecord.SeqRecordIterableDataset("records", clip_len="16")  # E: arg-type
seqrecord.SeqRecordNode("records", clip_len=16, shuffle=None)  # E: arg-type
seqrecord.SeqRecordMapDataset("records", clip_len=16, shuffle=True)  # E: call-arg
seqrecord.SeqRecordPipe(3, clip_len=16)  # E: arg-type
seqrecord.LoaderOptions(clip_len=16, seeds=1)  # E: call-arg
seqrecord.bench("records", max_batches=3, clip_len=8).seconds
seqrecord.bench("records", batches=3)  # E: call-arg
"""


@pytest.mark.slow  # slow since mypy reads torch
def test_mypy_refuses_wrong_names_and_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["-m", "mypy", "--config-file=", "--ignore-missing-imports", program]
    result = run_python(*words, status=1, timeout=230)
    found = {
        int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]")
        for line in result.stdout.splitlines()
        if ": error: " in line
    }
    lines = PROGRAM.splitlines()
    expected = {i: line.split("E: ")[1] for i, line in enumerate(lines, 1) if "E: " in line}
    assert found == expected, result.stdout + result.stderr
    assert 'did you mean "clip_len"?' in result.stdout


def test_options_are_values(records: Path) -> None:
    """Frozen, equal to copies, replaceable, and accepted by any loader."""
    options = LoaderOptions(clip_len=4, batch_size=2, engine=EngineOptions(num_threads=2))
    for copied in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert copied == options
    with pytest.raises(FrozenInstanceError):
        options.clip_len = 3  # type: ignore[misc]
    changed = replace(options, shuffle=False, seed=np.int64(3))
    assert (changed.shuffle, changed.seed, changed.clip_len) == (False, 3, 4)
    assert type(changed.seed) is int
    with pytest.raises(ClipError, match="stride"):
        replace(options, stride=0)
    first = SeqRecordIterableDataset(records, clip_len=4, batch_size=2, shuffle=False)
    for loader in STREAMING:
        again = loader.from_options(records, first.options)
        assert again.options == first.options
        assert len(again) == len(first)
    assert SeqRecordMapDataset(records, clip_len=4).options == DatasetOptions(clip_len=4)


WRONG: list[tuple[str, Any, str]] = [
    ("clip_len", 0, "at least 1"),
    ("clip_len", True, "an integer"),
    ("clip_len", 1 << 40, "1 to"),
    ("clip_len", (2, 3, 4), "the least and the greatest one"),
    ("stride", 0, "at least 1"),
    ("dilation", "2", "an integer"),
    ("dilation", (2, 2), "an integer"),
    ("features", "image_left", "image_left"),
    ("features", [1], "a list of names"),
    ("features", np.array("id"), "a list of names"),  # a Collection without dimensions
    ("episodes", 3, "a list of keys or of numbers, a glob, or a function"),
    ("episodes", [True], "a list of keys or of numbers"),
    ("episodes", [0, "a/Easy"], "a list of keys or of numbers"),
    ("rename", ["image_left"], "a dict such as"),
    ("rename", {"image_left": "image", "pose": "image"}, "no name twice"),
    ("rename", {"image_left": 3}, "a dict such as"),
    ("pad", "middle", "'edge' or 'before' or 'after'"),
    ("frame_transform", "resize", "a function"),
    ("frame_cache", "/nvme/frames", 'seqrecord.FrameCache(folder, "200GiB")'),
    ("samples", [None, 3], "a list of functions"),
    ("shuffle", 1, "True or False"),
    ("engine", {"num_threads": 2}, "seqrecord.EngineOptions(…)"),
    ("seed", 1.5, "an integer"),
    ("seed", None, "an integer"),
    ("batch_size", 0, "at least 1"),
    ("last_batch", True, "'repeat' or 'drop' or 'keep'"),
    ("memory_limit", "2 elephants", "bytes, or text"),
    ("rank", 3, "a pair (rank, world_size)"),
    ("rank", (3, 3), "a pair (rank, world_size)"),
    ("device", "abacus", "cpu or cuda:0"),
    ("seed", True, "an integer"),
    ("seed", np.float64(1), "an integer"),
    ("seed", np.bool_(True), "an integer"),
    ("seed", 1 << 1024, "an integer of at most 1024 bits"),
]
WRONG_OF_ENGINE: list[tuple[str, Any, str]] = [
    ("shuffle_buffer", 0, "at least 1"),
    ("num_cursors", -1, "at least 1"),
    ("num_threads", 0, "at least 1"),
    ("num_threads", 1.5, "an integer"),
    ("video_decoder", "nvdec", "'pyav' or 'torchcodec'"),
]


def test_errors_name_the_invalid_argument(records: Path) -> None:
    dataset = seqrecord.open(records)
    for name, value, expected in WRONG:
        for make in (LoaderOptions, partial(SeqRecordIterableDataset, dataset)):
            with pytest.raises(ClipError) as caught:
                make(**{"clip_len": 4, name: value})
            assert name.removeprefix("clip_") in caught.value.message or name == "device"
            assert expected in str(caught.value.expected)
            assert caught.value.got is not None
    for name, value, expected in WRONG_OF_ENGINE:
        with pytest.raises(ClipError, match=rf"engine\.{name}") as caught:
            EngineOptions(**{name: value})
        assert expected in str(caught.value.expected)
    for name in ("seed", "stride", "rank", "batch_size"):
        too_long: dict[str, Any] = {"clip_len": 4, name: -(10**5000)}
        with pytest.raises(ClipError, match="an integer of 16,610 bits"):  # too long to print
            SeqRecordIterableDataset(dataset, **too_long)
    of_bench: list[dict[str, Any]] = [
        *({"max_batches": wrong} for wrong in (0, "3")),
        {"consumer_seconds": "long"},
    ]
    for options in of_bench:
        with pytest.raises(ClipError, match=next(iter(options))):
            bench(records, **options)


TORCHCODEC = EngineOptions(video_decoder="torchcodec")
WITHOUT_EFFECT: list[tuple[dict[str, Any], str, str]] = [
    ({"samples": {"start": [0]}, "stride": 2}, "samples has", "no stride"),
    ({"engine": TORCHCODEC}, "video_decoder", "a device too"),
    (
        {"engine": TORCHCODEC, "device": "cpu", "frame_transform": dict},
        "frame_transform",
        "no frame_transform; or no video_decoder",
    ),
]


def _frames(frame: dict[str, Any]) -> dict[str, Any]:
    return frame


DECODER = "engine.video_decoder='torchcodec'"
TABLE = {"episode": ["a"], "frames": [[1, 2]]}
SPANS = {"episode": ["a"], "start": [0], "stop": [9]}
CONFLICTS: list[tuple[dict[str, Any], str, str, Any]] = [
    (
        {"output": "numpy", "ragged": {"id": "nested"}, "clip_len": None},
        "NumPy has no nested arrays",
        'ragged="list" or "pad"; or output="torch"',
        "output='numpy' ragged={'id': 'nested'}",
    ),
    ({"clip_len": None}, "neither clip_len nor windows is given", "one, or both", None),
    (
        {"clip_len": None, "windows": {"id": [0]}, "dilation": 2, "squeeze_time": True},
        "dilation is that of clip_len",
        "clip_len too",
        2,
    ),
    (
        {"squeeze_time": True, "samples": [dilate(1, 2), dilate(3)]},
        "squeeze_time is for clips with one frame of each feature without a window",
        "no lists of frames, and clip_len=1 or none",
        "clip_len=4",
    ),
    (
        {"samples": [reverse(0.5), dilate(1, 2), reverse(0.5), dilate(3)], "dilation": 2},
        "samples has dilate twice",
        "one dilate(…)",
        None,
    ),
    (
        {"samples": [dilate(1, 2), subset(of=2)], "dilation": 2},
        "dilation and dilate exclude each other",
        "dilate(…) alone",
        2,
    ),
    (
        {"samples": subset(of=2), "stride": 1 << 40},
        "subset has fewer frames than a clip, or there is no clip_len",
        "at least the greatest clip_len",
        "subset(of=2), clip_len=4",
    ),
    (
        {"samples": [{"episode": ["a"], "start": [1]}, reverse(0.5)], "windows": {"id": [0]}},
        "dilate, reverse, subset, and a drawn clip_len are for clips of clip_len frames",
        "no windows, but for Latest() and Next()",
        "clip_len=4, reverse",
    ),
    (
        {"samples": [TABLE, dilate(1, 2)], "stride": 2, "pad": "edge", "batch_size": Budget(8)},
        "samples has the frames of each clip",
        "no stride, clip_len, pad, dilate",
        None,
    ),
    (
        {"samples": TABLE, "clip_len": None, "windows": {"id": [0]}},
        "samples has the frames of each clip",
        (
            "no windows; or a column start instead of frames, and windows with anchors where "
            'frames differ from clip to clip: windows={"image": [0, At("goal")]}'
        ),
        None,
    ),
    (
        {"samples": [segments({**SPANS, "dilation": [1]}), dilate(1, 6)], "stride": 2},
        "segments have the dilation or the direction of each clip",
        "no dilate",
        None,
    ),
    (
        {"samples": [segments({**SPANS, "reverse": [True]}), reverse(0.5)]},
        "segments have the dilation or the direction of each clip",
        "no reverse",
        None,
    ),
    (
        {"samples": segments({**SPANS, "dilation": [1]}), "dilation": 2},
        "segments have the dilation or the direction of each clip",
        "no dilation",
        None,
    ),
    (
        {
            "clip_len": (2, 4),
            "batch_size": Budget(8, cost="tokens"),
            "output": "numpy",
            "device": "cpu",
        },
        "a drawn clip_len has batches by frames alone",
        "Budget(48), without cost and max_rows; or an integer clip_len",
        f"clip_len=(2, 4), batch_size={Budget(8, cost='tokens')}",
    ),
    (
        {"output": "numpy", "device": "cpu", "engine": TORCHCODEC, "frame_transform": _frames},
        "NumPy arrays are in host memory",
        "no device, and jax.device_put of the batches; or output='torch'",
        "output='numpy' device=cpu",
    ),
    (
        {"engine": TORCHCODEC, "frame_transform": _frames},
        f"{DECODER} decodes on a device",
        "a device too, such as device='cuda'; or no video_decoder",
        "no device",
    ),
    (
        {"engine": TORCHCODEC, "device": "cpu", "resize": (4, 4)},
        f"{DECODER}, but frame_transform and resize are for frames of the host",
        "no resize and no frame_transform; or no video_decoder",
        "device=cpu, and both",
    ),
]


def test_of_conflicting_arguments_the_first_conflict_is_raised() -> None:
    """In the order of the list: most of these arguments break a later rule, too."""
    for arguments, problem, expected, got in CONFLICTS:
        with pytest.raises(ClipError) as caught:
            LoaderOptions(**{"clip_len": 4, **arguments})
        error = caught.value
        assert (error.message, error.expected, error.got) == (problem, expected, got)


def test_arguments_without_effect_are_refused(records: Path) -> None:
    """The error names the argument to remove or to add."""
    for arguments, name, expected in WITHOUT_EFFECT:
        callees: list[Any] = [LoaderOptions, *(partial(loader, records) for loader in STREAMING)]
        for take in callees:
            with pytest.raises(ClipError) as caught:
                take(**{"clip_len": 4, **arguments})
            assert name in caught.value.message
            assert expected in str(caught.value.expected)
    accepted: list[dict[str, Any]] = [
        {"shuffle": False, "seed": 3},
        {"shuffle": False, "last_batch": "drop"},
        {"last_batch": "drop", "batch_size": 2},
        {"samples": every(4, rotate=True), "stride": 1, "order": "sequences", "batch_size": 2},
        {"device": "cpu"},
        {"clip_len": 1, "dilation": 2},
        {"pad": "edge"},
    ]
    for arguments in accepted:
        assert len(SeqRecordIterableDataset(records, **{"clip_len": 4, **arguments})) > 0
    # A DataLoader that decides not to shuffle is no error.
    pipe = SeqRecordPipe(records, clip_len=4, engine=EngineOptions(num_cursors=2, shuffle_buffer=4))
    starts = [int(clip["start"]) for clip in DataLoader(pipe, batch_size=None, shuffle=False)]
    assert starts == [*range(8), *range(6)]


def test_video_decoders_are_options_of_the_mix(records: Path) -> None:
    def source(**changes: Any) -> SeqRecordIterableDataset:
        return SeqRecordIterableDataset(records, clip_len=4, features=["image_left"], **changes)

    with pytest.raises(ClipError, match="source 'a' of a mix sets options of the mix") as caught:
        SeqRecordMix({"a": source(device="cpu", engine=TORCHCODEC)}, batch_size=2)
    assert caught.value.got == "device='cpu', engine.video_decoder='torchcodec'"
    with pytest.raises(ClipError, match="video_decoder"):
        SeqRecordMix({"a": source()}, batch_size=2, engine=TORCHCODEC)
    sources = {"a": source(), "b": source(frame_transform=dict)}
    mix = SeqRecordMix(sources, batch_size=2, device="cpu", engine=TORCHCODEC)
    assert len(next(iter(mix))["start"]) == 2


def test_sources_of_a_mix_keep_their_number_of_cursors(records: Path) -> None:
    few = EngineOptions(num_cursors=1, shuffle_buffer=1)
    stream = SeqRecordIterableDataset(records, clip_len=4, features=["pose"], engine=few)
    mix = SeqRecordMix({"a": stream}, batch_size=2, engine=EngineOptions(num_threads=1))
    list(mix)
    assert mix.stats()["sources"]["a"]["num_interleaved"] == 1
    for engine in (EngineOptions(num_cursors=3), EngineOptions(shuffle_buffer=3)):
        with pytest.raises(ClipError, match="is that of a source"):
            SeqRecordMix({"a": stream}, batch_size=2, engine=engine)


def test_arguments_of_other_functions_are_refused(records: Path) -> None:
    """The error has the call to use instead."""
    of_open = ("verify", "storage_options", "cache_dir", "cache_limit", "join")
    of_engine = [field.name for field in fields(EngineOptions)]
    dataset, loaders = seqrecord.open(records), [*STREAMING, bench]
    belong = [
        (loader, one, "open") for loader in (*loaders, SeqRecordMapDataset) for one in of_open
    ]
    belong += [(loader, name, "EngineOptions") for loader in loaders for name in of_engine]
    for loader, name, place in belong:
        with pytest.raises(ClipError) as caught:
            loader(dataset, clip_len=4, **{name: None})
        location = "location, " if place == "open" else ""
        assert f"seqrecord.{place}({location}{name}=…)" in str(caught.value.expected)
    with pytest.raises(ClipError, match="by their number have no epochs"):
        SeqRecordMapDataset(dataset, clip_len=4, engine=None)  # type: ignore[call-arg]
    with pytest.raises(ClipError, match="verify"):
        SeqRecordPipe(records, clip_len=4, verify=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="clip_length"):
        SeqRecordPipe(records, clip_length=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("flag", [False, True])
def test_flags_of_numpy(records: Path, flag: bool) -> None:
    """They are stored as Python's."""
    given: Any = np.bool_(flag)
    names = ("shuffle", "skip_bad_episodes")
    made = SeqRecordPipe(records, clip_len=4, **dict.fromkeys(names, given))
    stored: list[Any] = [getattr(made.options, name) for name in names]
    stored.append(seqrecord.Budget(4, padded=given).padded)
    stored.append(seqrecord.FrameTransform(dict, deterministic=given).deterministic)
    stored.append(seqrecord.Camera(inverse=given).inverse)
    stored.append(every(2, rotate=given).arguments["rotate"])
    stored.append(seqrecord.HorizontalFlip(shared=given).shared)
    assert all(one is flag for one in stored)


def test_names_in_any_collection(records: Path) -> None:
    kinds: list[Any] = [list, tuple, set, dict.fromkeys, np.array]
    for kind in kinds:
        names = {"features": kind(["image_left", "pose"]), "episodes": kind(["a/Easy"])}
        made = SeqRecordIterableDataset(records, clip_len=4, **names)
        assert len(made) == 8
        assert sorted(made.dataset.features) == ["image_left", "pose"]


@pytest.mark.parametrize("kind", [list, tuple, set, np.array])
def test_names_of_metadata_in_any_collection(tmp_path: Path, kind: Any) -> None:
    write_dataset(tmp_path / "r", {"a": 3}, metadata={"a": {"task": "t", "arm": "left"}})
    pipe = SeqRecordPipe(tmp_path / "r", clip_len=1, metadata=kind(["task", "arm"]))
    clip = next(iter(pipe))
    assert (clip["task"], clip["arm"]) == ("t", "left")


def test_a_pickled_loader_has_episode_keys_instead_of_the_filter(records: Path) -> None:
    for loader in (*STREAMING, SeqRecordMapDataset):
        made = loader(records, clip_len=4, episodes=lambda _metadata: True)
        copied = pickle.loads(pickle.dumps(made))
        assert len(copied) == len(made)
        assert copied.options == replace(made.options, episodes=["a/Easy", "b/Easy"])


@pytest.mark.parametrize("options", [LoaderOptions, DatasetOptions, EngineOptions, BenchOptions])
def test_defaults_are_valid(options: Any) -> None:
    """They pass unchecked, so each is what its check returns."""
    checked = [item for item in fields(options) if "check" in item.metadata]
    assert checked
    for item in checked:
        if item.default is not None:
            assert item.metadata["check"](item.name, item.default) == item.default
