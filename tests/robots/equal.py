"""Compares items of `seqrecord.lerobot.LeRobotDataset` with lerobot's, to the last bit.

::

    python -m tests.robots.equal FOLDER    # prints a line of JSON for each dataset

Needs a Python with lerobot. Writes datasets into FOLDER by lerobot and reads them by PyAV, as
`make test-lerobot` does; with lerobot 0.3.3 they are v2.1. Compares all items: with and without
windows, of selected episodes, as uint8 and as float32; numbers of all dtypes, images in tables;
with lerobot 0.6 depth, in millimetres and in metres, and language columns: lists of items, and
the texts of resolvers against lerobot's renderer.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lerobot.equal import CAMERAS, VARIANTS, encode_again, write
from tests.kit.lerobot_data import FEATURES, FPS, episodes, write_dataset
from tests.kit.lerobot_depth_data import DEPTH, IMAGE, write_depth_images
from tests.kit.lerobot_depth_data import write as write_depth
from tests.kit.lerobot_language_data import BINDINGS, random_rows

_FRAMES = {
    **dict.fromkeys(CAMERAS, range(-2, 2)),
    "observation.images.wrist": range(-9, 10, 3),
    "observation.state": range(-3, 1),
    "action": range(6),
    "index": (-1, 0, 3),
    "frame_index": (-1, 0),
    "episode_index": (0, 1),
}
_OF_TABLES = {name: (-1, 0, 2) for name in FEATURES if name != "note"}
_ATTRIBUTES = ("num_frames", "num_episodes", "episodes", "fps", "features")
_NEW = "absolute_to_relative_idx"  # missing in 0.3.3


def compare(
    root: Path,
    frames: dict[str, Any],
    records: Path | None = None,
    *,
    within: float = 0,
    **others: Any,
) -> dict[str, Any]:
    """Compare both datasets: the number of compared values, lerobot's errors, and the differences
    as feature, arguments and item. `others` are arguments of both classes.

    Floats may differ by `within`.
    """
    compared, raised = Counter[str](), Counter[str]()
    differ = []
    windows = {name: [i / FPS for i in offsets] for name, offsets in frames.items()}
    for options in (
        {},
        {"return_uint8": True},
        {"episodes": [0, 2]},
        {"delta_timestamps": windows},
        {"delta_timestamps": windows, "episodes": [1, 2], "return_uint8": True},
    ):
        ours, theirs = _both(root, {**options, **others}, records)
        for name in (*_ATTRIBUTES, _NEW):
            assert getattr(ours, name) == getattr(theirs, name, getattr(ours, name)), name
        assert len(ours) == len(theirs)
        if {"episodes", "delta_timestamps"} <= options.keys() and not hasattr(theirs, _NEW):
            continue  # 0.3.3 uses the windows of other episodes
        batch = ours.__getitems__(range(len(ours)))
        for number, together in enumerate(batch):
            try:
                wanted = theirs[number]
            except (
                RuntimeError,
                ValueError,
                AssertionError,
                IndexError,
            ) as error:  # from 0.3.3's reader
                raised[type(error).__name__] += 1
                continue
            for item in (together, ours[number]):
                for name in {**wanted, **item}:
                    compared[name] += 1
                    if not _same(item.get(name), wanted.get(name), within):
                        differ.append((name, str(options), number))
    return {"compared": compared.total(), "theirs raises": raised, "differ": differ}


def _both(root: Path, options: dict[str, Any], records: Path | None) -> tuple[Any, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    from seqrecord.lerobot import LeRobotDataset

    ours = LeRobotDataset("a/test", root, records=records, **options)
    theirs: dict[str, Any] = {"video_backend": "pyav", **options}
    try:
        return ours, Theirs("a/test", root, **theirs)
    except TypeError:  # 0.3.3 has no `return_uint8`
        as_uint8 = theirs.pop("return_uint8")
        found = Theirs("a/test", root, **theirs)
        assert as_uint8
        return LeRobotDataset("a/test", root, records=records, **_of_floats(options)), found


def _of_floats(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "return_uint8"}


def _same(ours: Any, theirs: Any, within: float) -> bool:
    if not isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs) and bool(ours == theirs)
    return (
        isinstance(ours, torch.Tensor)
        and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        and (
            torch.allclose(ours, theirs, rtol=0, atol=within)
            if within
            else torch.equal(ours, theirs)
        )
    )


def _depths(folder: Path) -> dict[str, dict[str, Any]]:
    """Depth options by kind of scale and unit."""
    import seqrecord

    found = {}
    for name, root in zip(DEPTH, write_depth(folder / "depth", (4, 6, 5)), strict=True):
        records = root.with_name(f"{root.name}-records")
        seqrecord.convert(seqrecord.open_source(root), records, workers=1)
        for unit in ("mm", "m"):
            # Exponentials are rounded differently: see `DepthScale.metres`.
            within = 1e-6 if (root.name, unit) == ("log", "m") else 0
            windows = {name: (-1, 0, 2)}
            for place in (records, None):  # in place, too
                result = compare(root, windows, place, within=within, depth_output_unit=unit)
                found[f"depth, {root.name}, {unit}, {place is None}"] = result
    for dtype in ("u2", "f4"):
        root = folder / f"depth_{dtype}"
        write_depth_images(root, dtype, (4, 6, 5))
        records = root.with_name(f"{root.name}-records")
        seqrecord.convert(seqrecord.open_source(root), records, workers=1, strict=True)
        for unit in ("mm", "m"):
            result = compare(root, {IMAGE: (-1, 0, 2)}, records, depth_output_unit=unit)
            found[f"depth as TIFF, {dtype}, {unit}"] = result
    return found


def _rendered(root: Path, count: int) -> dict[str, Any]:
    """Compare the texts of resolvers with lerobot's renderer on `count` random rows."""
    from lerobot.configs.recipe import MessageTurn, TrainingRecipe
    from lerobot.datasets.language_render import render_sample
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    import seqrecord

    turn: dict[str, Any] = {"role": "assistant", "stream": "low_level", "target": True}
    recipes = {
        name: TrainingRecipe(
            [MessageTurn(content=f"${{{name}}}", if_present=name, tool_calls_from=name, **turn)],
            BINDINGS | dict.fromkeys(("vqa", "vqa_query"), BINDINGS["vqa_wrist"]),
        )
        for name in BINDINGS
    }
    theirs = Theirs("a/test", root, video_backend="pyav")
    compared, present, differ = 0, Counter[str](), []
    with seqrecord.open(root, language=BINDINGS) as opened:
        keys = [*opened.episodes]
        reader = opened.select([*BINDINGS])
        for number in np.random.default_rng(0).choice(len(theirs), count, replace=False).tolist():
            row = theirs.hf_dataset[number]
            ours = reader.episodes[keys[int(row["episode_index"])]][int(row["frame_index"])]
            for name, recipe in recipes.items():
                rendered = render_sample(
                    recipe=recipe,
                    persistent=row["language_persistent"],
                    events=row["language_events"],
                    t=row["timestamp"].item(),
                    sample_idx=number,
                )
                wanted = None
                if rendered is not None:
                    (message,) = rendered["messages"]
                    wanted = message.get("tool_calls", message["content"])
                    present[name] += 1
                got = ours.get(name)
                got = json.loads(got) if got is not None and isinstance(wanted, list) else got
                compared += 1
                if got != wanted:
                    differ.append((name, got, number))
    return {"compared": compared, "present": present, "differ": differ}


def _languages(folder: Path) -> dict[str, dict[str, Any]]:
    shutil.copytree(folder / VARIANTS[0], folder / "language")
    annotate_by_lerobot(folder / "language", folder / "staging")
    features = {"observation.state": {"dtype": "float32", "shape": (2,), "names": None}}
    camera = {"dtype": "video", "shape": (32, 48, 3), "names": ["height", "width", "channels"]}
    recorded = (
        [{"observation.state": np.zeros(2, "f4"), "camera": np.zeros((32, 48, 3), "u1")}] * length
        for length in (400, 350, 500)
    )
    write_dataset(folder / "long", features | {"camera": camera}, recorded)
    annotate_by_lerobot(folder / "long", folder / "long_staging")
    return {
        "language": compare(folder / "language", _FRAMES),
        "language, resolvers": _rendered(folder / "long", 1000),
    }


def _round_trip(root: Path) -> dict[str, Any]:
    """Compare lerobot's items of a dataset, and of its export from records."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    import seqrecord
    from seqrecord.export import to_lerobot

    records, back = (root.with_name(f"{root.name}-{end}") for end in ("packed", "back"))
    seqrecord.convert(seqrecord.open_source(root), records, workers=1)
    to_lerobot(records, back)
    one, two = (Theirs("a/test", path, video_backend="pyav") for path in (root, back))
    compared, differ = 0, []
    for number in range(max(len(one), len(two))):
        was, now = one[number], two[number]
        for name in {**was, **now}.keys() - {"task_index"}:  # lerobot numbers a set of tasks
            compared += 1
            if not _same(now.get(name), was.get(name), 0):
                differ.append((name, number))
    if one.meta.info["splits"] != two.meta.info["splits"]:
        differ.append(("splits", 0))
    return {"compared": compared, "differ": differ}


def main(folder: Path) -> None:
    """Run the command; the exit status is 1 if anything differs."""
    import seqrecord

    write(folder)
    found = {name: compare(folder / name, _FRAMES) for name in VARIANTS}
    write_dataset(folder / "tables", FEATURES, episodes(), use_videos=False)
    seqrecord.convert(seqrecord.open_source(folder / "tables"), folder / "records", workers=1)
    found["tables"] = compare(folder / "tables", _OF_TABLES, folder / "records")
    if find_spec("lerobot.configs.video"):
        found |= _depths(folder)
        found |= _languages(folder)
        shutil.copytree(folder / VARIANTS[0], folder / "between keyframes")
        for path in (folder / "between keyframes").rglob("*.mp4"):
            encode_again(path, g="100", bf="0")  # exports encode the end of an episode of B-frames
        names = [
            VARIANTS[0],
            "between keyframes",
            "tables",
            "language",
            "depth/log",
            "depth/linear",
            "depth_u2",
            "depth_f4",
        ]
        found |= {f"{name}, exported": _round_trip(folder / name) for name in names}
    for name, result in found.items():
        sys.stdout.write(json.dumps({"dataset": name, **result}) + "\n")
    sys.exit(any(result["differ"] for result in found.values()))


def annotate_by_lerobot(root: Path, staging: Path) -> None:
    """Add the columns to a dataset by lerobot's own writer."""
    from lerobot.annotations.steerable_pipeline.reader import iter_episodes
    from lerobot.annotations.steerable_pipeline.staging import EpisodeStaging
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter
    from lerobot.datasets.io_utils import load_info, write_info
    from lerobot.datasets.language import language_feature_info

    records = [*iter_episodes(root)]
    for record in records:
        stamps = record.frame_timestamps
        persistent, events = random_rows(record.episode_index, stamps)
        placed = [
            {**one, "timestamp": time}
            for time, some in zip(stamps, events, strict=True)
            for one in some
        ]
        EpisodeStaging(staging, record.episode_index).write("plan", persistent + placed)
    LanguageColumnsWriter().write_all(records, staging, root)
    info = load_info(root)
    info.features = {**info.features, **language_feature_info()}
    write_info(info, root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
