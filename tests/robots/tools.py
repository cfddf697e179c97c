"""Exports, used by lerobot's own tools: `make lerobot-tools`.

`make FOLDER` writes the exports. `try FOLDER`, with a Python that has lerobot, loads, aggregates,
deletes, appends, adds a feature and trains. `record FOLDER`, with that Python, too, lets lerobot
write the same frames; then `describe FOLDER` prints keys and columns for
tests/golden/lerobot_0.6.1.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.lerobot_data import FEATURES, episodes, write_dataset

CAMERA = "observation.images.front"
_SIDES = (64, 96, 3)
_AXES = ["height", "width", "channels"]
_FEATURES: dict[str, dict[str, Any]] = {
    # lerobot 0.6.1 cannot delete episodes of datasets with an array of two axes, its own included.
    **{name: feature for name, feature in FEATURES.items() if name != "tactile"},
    "observation.image": {**FEATURES["observation.image"], "names": _AXES},
    CAMERA: {"dtype": "video", "shape": _SIDES, "names": _AXES},
}
_LENGTHS = [5, 3, 7]
_POLICY = ["--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false"]
_SMALL = ["--policy.chunk_size=4", "--policy.n_action_steps=4", "--policy.dim_model=64"]


def recorded() -> list[list[dict[str, Any]]]:
    """Frames of three episodes with a camera."""
    rng = np.random.default_rng(1)
    made = episodes()
    for frame in (frame for frames in made for frame in frames):
        del frame["tactile"]
        frame[CAMERA] = np.kron(rng.integers(0, 256, (8, 12, 3)), np.ones((8, 8, 1))).astype("u1")
    return made


def export(folder: Path) -> Path:
    """Export these episodes by `to_lerobot`."""
    from seqrecord import SeqRecordWriter
    from seqrecord.export import to_lerobot

    names = {"robot_type": "arm", "names": {n: f["names"] for n, f in _FEATURES.items()}}
    codecs = {CAMERA: "av1:gop=2"}
    with SeqRecordWriter(folder / "records", fps=10, codecs=codecs) as writer:
        for number, frames in enumerate(recorded()):
            with writer.episode(f"{number}", metadata=names) as episode:
                for frame in frames:
                    episode.append(frame)
    return to_lerobot(folder / "records", folder / "exported")


def described(root: Path) -> dict[str, Any]:
    """Keys and columns of a dataset, with types and shapes of statistics."""
    import pyarrow.parquet as pq

    def columns(path: str) -> dict[str, str]:
        schema = pq.read_schema(root / path)
        return {name: str(schema.field(name).type) for name in sorted(schema.names)}

    info = json.loads((root / "meta/info.json").read_text())
    stats = json.loads((root / "meta/stats.json").read_text())
    return {
        "info": sorted(info),
        "features": info["features"],
        "stats": {
            name: {key: str(np.shape(value)) for key, value in sorted(one.items())}
            for name, one in sorted(stats.items())
        },
        "episodes": columns("meta/episodes/chunk-000/file-000.parquet"),
        "data": columns("data/chunk-000/file-000.parquet"),
        "tasks": columns("meta/tasks.parquet"),
    }


def _record(folder: Path) -> None:
    write_dataset(folder / "exported", _FEATURES, recorded(), robot_type="arm")


def _describe(folder: Path) -> None:
    sys.stdout.write(json.dumps(described(folder / "exported"), indent=1) + "\n")


def _try(folder: Path) -> None:
    for step in _uses(folder):
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()


def _uses(folder: Path) -> Iterator[str]:
    from lerobot.datasets.aggregate import aggregate_datasets
    from lerobot.datasets.dataset_tools import add_features, delete_episodes
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    one = folder / "exported"
    dataset = LeRobotDataset("a/test", root=one)
    _check(dataset, _LENGTHS)
    yield "loaded"
    yield f"deleted: {_check(delete_episodes(dataset, [1], folder / 'deleted'), [5, 7])}"
    _record(folder / "own")
    roots = [one, folder / "own" / "exported", one, folder / "deleted"]
    aggregate_datasets(["a/test"] * 4, "a/all", roots, folder / "all")
    every = [*_LENGTHS * 3, 5, 7]
    yield f"aggregated: {_check(LeRobotDataset('a/all', root=folder / 'all'), every)}"
    more = LeRobotDataset.resume("a/test", root=one)
    for frame in recorded()[0]:
        more.add_frame(frame)
    more.save_episode()
    more.finalize()
    dataset = LeRobotDataset("a/test", root=one)
    yield f"appended: {_check(dataset, [*_LENGTHS, 5])}"
    yield f"deleted then: {_check(delete_episodes(dataset, [0], folder / 'rest'), [3, 7, 5])}"
    latent = {"dtype": "float32", "shape": (4,), "names": None}
    values = np.zeros((len(dataset), 4), np.float32)
    add_features(dataset, {"latent": (values, latent)}, folder / "wider", "a/wider")
    doctor = [sys.executable, "-m", "seqrecord", "doctor", str(folder / "wider"), "--quiet"]
    report = subprocess.run(doctor, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "warning: statistics: a feature without statistics" in report, report
    yield "a feature added: doctor warns"
    train = ["lerobot-train", "--dataset.repo_id=a/test", f"--dataset.root={one}", "--steps=2"]
    more_of = ["--batch_size=2", "--num_workers=0", f"--output_dir={folder / 'training'}"]
    program = str(Path(sys.executable).parent / train[0])
    backbone = ["--policy.pretrained_backbone_weights=null"]
    subprocess.run(
        [program, *train[1:], *more_of, *_POLICY, *_SMALL, *backbone], check=True, cwd=folder
    )
    yield "trained; all passed"


def _check(dataset: Any, lengths: list[int]) -> str:
    """Assert equal frames and finite statistics; episodes are identified by their lengths."""
    assert [int(n) for n in dataset.meta.episodes["length"]] == lengths
    assert len(dataset) == sum(lengths)
    written = dict(zip(_LENGTHS, recorded(), strict=True))
    numbers = [(n, frame) for n, length in enumerate(lengths) for frame in written[length]]
    for i, (number, frame) in enumerate(numbers):
        item = dataset[i]
        assert int(item["episode_index"]) == number
        assert item["task"] == frame["task"]
        assert np.array_equal(item["action"], frame["action"].astype(np.float32))
        for name, most in (("observation.image", 1e-6), (CAMERA, 0.2)):
            image = item[name].numpy().transpose(1, 2, 0)
            assert np.abs(image - frame[name] / 255).mean() < most, name
    for name, stats in dataset.meta.stats.items():
        assert all(np.isfinite(np.asarray(value, float)).all() for value in stats.values()), name
    return f"{len(lengths)} episodes, {len(numbers)} frames"


def main() -> None:
    """Run the command."""
    command, folder = sys.argv[1], Path(sys.argv[2])
    {"make": export, "record": _record, "try": _try, "describe": _describe}[command](folder)


if __name__ == "__main__":
    main()
