"""`lerobot-train` with seqrecord's reader and with LeRobot's: `make test-lerobot`, run by hand.

Needs a Python with lerobot and the plug-in of integrations/lerobot. `check FOLDER` compares losses,
`check-mix FOLDER` the losses of a mix of two robots and of a merged dataset. `measure FOLDER` and
`measure-mix FOLDER` print the tables of benchmarks/lerobot/TRAINING.md as JSON. All start `train`:
`lerobot-train` with a log of each step.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SEED = 7
_SIDES = {"front": (96, 128), "wrist": (96, 128), "top": (480, 640)}
_LENGTHS = (60, 45, 70, 50)
_AXES = ["height", "width", "channels"]
# No random numbers in the model: after `--resume`, lerobot 0.6.1 draws different ones.
_POLICY = "device=cpu push_to_hub=false pretrained_backbone_weights=null"
_ACT, _DIFFUSION = (
    [f"--policy.{option}" for option in f"{_POLICY} {policy}".split()]
    for policy in (
        "type=act dropout=0 use_vae=false chunk_size=8 n_action_steps=8 dim_model=64",
        "type=diffusion horizon=8 n_action_steps=4 down_dims=[32,64] crop_ratio=1.0",
    )
)
_ACT.append("--policy.dim_feedforward=128")


def make(root: Path) -> None:
    """Write four episodes with two small cameras and a large one, by lerobot."""
    from tests.kit.lerobot_data import write_dataset

    numbers: dict[str, Any] = {"dtype": "float32", "shape": (6,), "names": None}
    features = {"observation.state": numbers, "action": numbers} | {
        f"observation.images.{name}": {"dtype": "video", "shape": (*sides, 3), "names": _AXES}
        for name, sides in _SIDES.items()
    }
    rng = np.random.default_rng(0)
    scenes = {name: rng.integers(0, 256, (12, 16, 3)) for name in _SIDES}

    def frame(number: int) -> dict[str, Any]:
        shown = {
            f"observation.images.{name}": np.kron(
                np.roll(scenes[name], number, axis=1), np.ones((sides[0] // 12, sides[1] // 16, 1))
            ).astype(np.uint8)
            for name, sides in _SIDES.items()
        }
        values = rng.normal(size=(2, 6)).astype(np.float32)
        return {"observation.state": values[0], "action": values[1], **shown}

    write_dataset(root, features, ((frame(i) for i in range(n)) for n in _LENGTHS))


_ROBOTS: dict[str, dict[str, Any]] = {
    "aloha": {"cameras": ("front", "wrist"), "places": (0, 1, 2, 3, 4, 5), "lengths": (60, 45)},
    "so101": {"cameras": ("front",), "places": (0, 1, 2, 5), "lengths": (50, 40, 30)},
}
_VECTORS = ("observation.state", "action")


def make_robots(
    root: Path, sides: tuple[int, int] = (96, 128), *, merged_as: str = "image"
) -> None:
    """Write datasets of two robots by lerobot, their mix, and a dataset merged here.

    The merged one has the decoded images, as PNG or as `video`, zeros for a robot's missing camera
    and values, and statistics that include the zeros.
    """
    from tests.kit.lerobot_data import write_dataset

    rng = np.random.default_rng(1)
    merged: list[list[dict[str, Any]]] = []
    sources = []
    for number, (name, robot) in enumerate(_ROBOTS.items()):
        places = [*robot["places"]]
        cameras = [f"observation.images.{camera}" for camera in robot["cameras"]]
        shape: dict[str, Any] = {"dtype": "float32", "shape": (len(places),), "names": None}
        features: dict[str, Any] = dict.fromkeys(_VECTORS, shape) | {
            camera: {"dtype": "video", "shape": (*sides, 3), "names": _AXES} for camera in cameras
        }
        blocks = np.ones((sides[0] // 12, sides[1] // 16, 1))
        scene = np.kron(rng.integers(0, 256, (12, 16, 3)), blocks).astype(np.uint8)
        recorded = [
            [
                {
                    **{one: rng.normal(number, 1 + number, len(places)).astype("f4")
                       for one in _VECTORS},
                    **{camera: np.roll(scene, i, axis=1) for camera in cameras},
                    "task": f"task {number}",
                }
                for i in range(length)
            ]
            for episode, length in enumerate(robot["lengths"])
        ]  # fmt: skip
        write_dataset(root / name, features, recorded, robot_type=name)
        merged += _placed(root / name, recorded, places, sides)
        shown = {vector: {"place": places} for vector in _VECTORS}
        sources.append(f"  {name}: {{location: {name}, weight: {3 - number}, vectors: {shown}}}\n")
    text = "sources:\n" + "".join(sources)
    for normalize in (None, "mix", "source"):
        line = f"vectors: {{normalize: mean_std, statistics: {normalize}}}\n" if normalize else ""
        name = "mix.yaml" if normalize is None else f"mix-{normalize}.yaml"
        (root / name).write_text(text + line)
    sizes = {name: {"dtype": "float32", "shape": (6,), "names": None} for name in _VECTORS}
    image = {"dtype": merged_as, "shape": (*sides, 3), "names": _AXES}
    images = dict.fromkeys((f"observation.images.{one}" for one in ("front", "wrist")), image)
    write_dataset(root / "merged", sizes | images, merged, use_videos=merged_as == "video")
    path = root / "merged/meta/stats.json"
    stats = json.loads(path.read_text())
    for name in _VECTORS:
        values = np.array([frame[name] for frames in merged for frame in frames], np.float64)
        stats[name] |= {
            one: getattr(values, one)(0).tolist() for one in ("mean", "std", "min", "max")
        }
    path.write_text(json.dumps(stats))


def _placed(
    root: Path, recorded: list[list[dict[str, Any]]], places: list[int], sides: tuple[int, int]
) -> Iterator[list[dict[str, Any]]]:
    """Frames of a robot in the layout of the merged dataset."""
    import seqrecord

    with seqrecord.open(root) as opened:
        for key, frames in zip(opened.episodes, recorded, strict=True):
            stored = opened.episodes[key][:]
            found = []
            for i, frame in enumerate(frames):
                one: dict[str, Any] = {"task": frame["task"]}
                for camera in ("front", "wrist"):
                    name = f"observation.images.{camera}"
                    one[name] = stored[name][i] if name in stored else np.zeros((*sides, 3), "u1")
                for name in _VECTORS:
                    one[name] = np.zeros(6, np.float32)
                    one[name][places] = frame[name]
                found.append(one)
            yield found


# --- The training process


def train(
    out: str,
    *,
    kill_after: int | None,
    step_seconds: float | None,
    order: str | None,
    arguments: list[str],
) -> None:
    """`lerobot-train ARGUMENTS`; a line of JSON for each step goes to `out`.RANK.

    With `step_seconds` a step sleeps instead of computing. `order` is a file with the numbers of
    the items to load.
    """
    from lerobot.scripts import lerobot_train

    theirs, path = lerobot_train.update_policy, f"{out}.{os.environ.get('RANK', 0)}"
    Path(path).unlink(missing_ok=True)
    peak = _PeakMemory()
    numbers, ended = itertools.count(1), [time.perf_counter()]

    def update_policy(tracker: Any, policy: Any, batch: Any, *more: Any, **options: Any) -> Any:
        started = time.perf_counter()
        if step_seconds is None:
            result = theirs(tracker, policy, batch, *more, **options)
            loss = tracker.metrics["loss"].val
        else:
            time.sleep(step_seconds)
            result, loss = (tracker, None), None
        line = {
            "indices": batch["index"].tolist(),
            "loss": loss,
            "waited": started - ended[0],
            "seconds": time.perf_counter() - ended[0],
            "memory": peak.bytes,
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
        if next(numbers) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        ended[0] = time.perf_counter()
        return result

    lerobot_train.update_policy = update_policy
    if any("sample_weighting" in argument for argument in arguments):
        _let_act_weight_samples()
    if order is not None:
        numbers_in_order = json.loads(Path(order).read_text())
        lerobot_train.EpisodeAwareSampler = lambda *_, **__: numbers_in_order
    sys.argv = ["lerobot-train", *arguments]
    lerobot_train.main()


def _let_act_weight_samples() -> None:
    """Give ACT a loss for each sample, as SmolVLA and pi0 have."""
    import torch
    from lerobot.policies.act.modeling_act import ACTPolicy

    theirs = ACTPolicy.forward

    def forward(self: Any, batch: dict[str, Any], reduction: str = "mean") -> Any:
        loss, more = theirs(self, batch)
        if reduction == "mean":
            return loss, more
        count = len(batch["index"])
        parts = {n: v for n, v in batch.items() if isinstance(v, torch.Tensor)}
        each = ({n: v[i : i + 1] for n, v in parts.items()} for i in range(count))
        return torch.stack([theirs(self, one)[0] for one in each]), more

    ACTPolicy.forward = forward


class _PeakMemory:
    """Peak memory (PSS) of this process and its children."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        import psutil

        own = psutil.Process()
        while True:
            pss = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    pss += process.memory_full_info().pss
                except psutil.Error:  # the process has ended
                    continue
            self.bytes = max(self.bytes, pss)
            time.sleep(0.5)


# --- The parent process


def run(
    folder: Path,
    name: str,
    *options: str,
    reader: str = "0",
    ranks: int = 1,
    kill_after: int | None = None,
    step_seconds: float | None = None,
    resume: str | None = None,
    data: str = "data",
    mix: str | None = None,
    order: list[int] | None = None,
    policy: Sequence[str] = _ACT,
    **variables: str,
) -> list[list[dict[str, Any]]]:
    """Run `train`; returns a list of steps for each rank."""
    out, listed = folder / f"{name}.jsonl", folder / f"{name}.order"
    if resume is None:
        place = ["--dataset.repo_id=a/test", f"--dataset.root={folder / data}"]
        place = place if mix is None else ["--dataset.repo_id=robots"]
        arguments = [f"--output_dir={folder / name}", *place, f"--seed={SEED}", *policy, *options]
    else:
        config = folder / resume / "checkpoints/last/pretrained_model/train_config.json"
        arguments = [f"--config_path={config}", "--resume=true", *options]
    program = ["-m", "tests.robots.training", "train", f"{out}", f"{kill_after}"]
    program += [f"{step_seconds}", f"{None if order is None else listed}"]
    if order is not None:
        listed.write_text(json.dumps(order))
    if ranks == 1:
        start = [sys.executable, *program]
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        start = [sys.executable, *launch, *program]
    environment = {**os.environ, "SEQRECORD_LEROBOT": reader, "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    if mix is not None:
        environment |= {"SEQRECORD_LEROBOT": "1", "SEQRECORD_LEROBOT_MIX": f"{folder / mix}"}
    with (folder / f"{name}.log").open("w") as log:
        done = subprocess.run([*start, *arguments], env=environment, stdout=log, stderr=log)
    expected = 0 if kill_after is None else -signal.SIGKILL
    assert done.returncode == expected, (folder / f"{name}.log").read_text()[-3000:]
    return [
        [json.loads(line) for line in Path(f"{out}.{rank}").read_text().splitlines()]
        for rank in range(ranks)
    ]


def losses(steps: list[dict[str, Any]]) -> list[tuple[list[int], float]]:
    """Frames and loss of each step, to the last bit."""
    return [(step["indices"], step["loss"]) for step in steps]


def check(folder: Path) -> None:
    """Raise `AssertionError` unless losses with both readers are equal."""
    order: list[list[int]] = []
    small = ["--steps=6", "--save_freq=3", "--batch_size=2", "--dataset.video_backend=pyav"]
    for workers in (0, 2):
        more = [*small, f"--num_workers={workers}"]
        (theirs,) = run(folder, f"theirs-{workers}", *more)
        (ours,) = run(folder, f"class-{workers}", *more, reader="class")
        assert losses(ours) == losses(theirs)
        _report(f"{workers} workers, lerobot's order: the losses of {len(ours)} steps are equal")
        order = [step["indices"] for step in theirs]
    (whole,) = run(folder, "whole", *small, "--num_workers=2", reader="1")
    assert [step["indices"] for step in whole] != order
    run(folder, "killed", *small, "--num_workers=2", reader="1", kill_after=5)
    (rest,) = run(folder, "resumed", reader="1", resume="killed")
    assert losses(rest) == losses(whole)[3:]
    _report("killed after 5 steps, resumed from 3: the losses of steps 4 to 6 are equal")
    two = [*small, "--num_workers=1"]
    expected = run(folder, "theirs-two", *two, ranks=2)
    seen = run(folder, "class-two", *two, ranks=2, reader="class")
    assert [losses(steps) for steps in seen] == [losses(steps) for steps in expected]
    planned = run(folder, "two", *two, ranks=2, reader="1")
    taken = [i for steps in planned for step in steps for i in step["indices"]]
    assert len(taken) == len(set(taken)) == 2 * 6 * 2
    _report("two processes: the losses are equal; the plan repeats no frame")
    run(folder, "two-ended", *two[1:], "--steps=3", ranks=2, reader="1")
    rests = run(folder, "two-resumed", "--steps=6", ranks=2, reader="1", resume="two-ended")
    assert [losses(rest) for rest in rests] == [losses(steps)[3:] for steps in planned]
    _report("two processes, resumed from step 3: the losses of steps 4 to 6 are equal")
    _check_fields()
    _check_options(folder)


def _check_fields() -> None:
    """Check that the table of options lacks no field of LeRobot's configurations about data."""
    from dataclasses import fields

    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    options: Any = importlib.import_module("lerobot_policy_seqrecord.options").OPTIONS

    others = [
        "dataset",
        "policy",
        "reward_model",
        "env",
        "output_dir",
        "job_name",
        "cudnn_deterministic",
        "steps",
        "log_freq",
        "save_checkpoint",
        "save_freq",
        "use_policy_training_preset",
        "optimizer",
        "scheduler",
        "wandb",
        "peft",
        "save_checkpoint_to_hub",
        "checkpoint_path",
    ]
    known = {name.partition("=")[0] for name in options}
    known |= {name.partition(".")[0] for name in known if not name.startswith("dataset")}
    names = [f"dataset.{one.name}" for one in fields(DatasetConfig)]
    names += [one.name for one in fields(TrainPipelineConfig) if one.name not in others]
    assert not {*names} - known, {*names} - known
    _report(f"{len(names)} options of lerobot-train are in the table")


def _check_options(folder: Path) -> None:
    """Check that options have the same effect as in LeRobot: losses and evaluations are equal."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    index, count = np.arange(sum(_LENGTHS)), len(_LENGTHS)
    table: dict[str, Any] = {"index": index, "episode_index": np.repeat(np.arange(count), _LENGTHS)}
    table["progress_sparse"] = np.random.default_rng(0).uniform(0, 1, len(index))
    pq.write_table(pa.table(table), folder / "progress.parquet")
    common = ["--steps=6", "--batch_size=2", "--num_workers=0", "--save_checkpoint=false"]
    common += ["--dataset.video_backend=pyav", "--dataset.image_transforms.enable=true"]
    common += ["--dataset.use_imagenet_stats=false", "--dataset.eval_split=0.3", "--eval_steps=3"]
    common += ["--max_eval_samples=7"]
    weighted = ["--sample_weighting.type=rabc"]
    weighted += [f"--sample_weighting.progress_path={folder / 'progress.parquet'}"]
    weighted += ["--dataset.episodes=[0,1,3]"]
    found = {}
    for name, options in (
        ("theirs", {"reader": "0"}),
        ("class", {"reader": "class"}),
        ("planned", {"reader": "1"}),
        ("mix", {"mix": "mix.yaml"}),
    ):
        more = [] if name == "mix" else weighted
        (steps,) = run(folder, f"options-{name}", *common, *more, **options)  # type: ignore[arg-type]
        log = (folder / f"options-{name}.log").read_text()
        found[name] = losses(steps), re.findall(r"step \d+: eval_loss=[0-9.]+", log)
        assert len(found[name][1]) == 2, log[-2000:]
    assert found["class"] == found["theirs"]
    taken = [i for indices, _ in found["planned"][0] for i in indices]
    assert all(i < sum(_LENGTHS[:2]) for i in taken), taken  # episode 3 is held out
    _report(f"options: equal losses and evaluations {found['class'][1]}; the plan follows them")


def check_mix(folder: Path) -> None:
    """Raise `AssertionError` unless a mix trains like the merged dataset."""
    each = (("act", _ACT, ((1, 0), (1, 2), (2, 1))), ("diffusion", _DIFFUSION, ((1, 0),)))
    for name, policy, processes in each:
        for ranks, workers in processes:
            more = ["--steps=20", "--batch_size=3", f"--num_workers={workers}"]
            more += ["--save_checkpoint=false", "--dataset.video_backend=pyav"]
            title = f"{name}-{ranks}-{workers}"
            options: Any = {"policy": policy, "ranks": ranks}
            ours = run(folder, f"mix-{title}", *more, mix="mix.yaml", **options)
            steps = zip(*ours, strict=True)
            order = [i for each in steps for step in each for i in step["indices"]]
            theirs = run(folder, f"merged-{title}", *more, data="merged", order=order, **options)
            for one, other in zip(ours, theirs, strict=True):
                assert len(one) == 20
                assert [step["indices"] for step in one] == [step["indices"] for step in other]
                differences = [abs(a["loss"] - b["loss"]) for a, b in zip(one, other, strict=True)]
                _report(f"{title}: losses of 20 steps differ by at most {max(differences):g}")
                assert max(differences) <= 1e-6, differences
    _check_mix_resumes(folder)
    _check_mix_is_deployed(folder)


def _check_mix_resumes(folder: Path) -> None:
    small = ["--steps=6", "--save_freq=3", "--batch_size=2"]
    eval_split = ["--dataset.eval_split=0.3", "--eval_steps=2"]
    for name, ranks, workers, more in (("one", 1, 2, eval_split), ("two", 2, 1, [])):
        options = [*small, *more, f"--num_workers={workers}"]
        whole = run(folder, f"mix-whole-{name}", *options, mix="mix.yaml", ranks=ranks)
        if ranks == 1:
            log = (folder / f"mix-whole-{name}.log").read_text()
            assert log.count("eval_loss=") == 3
            run(folder, f"mix-killed-{name}", *options, mix="mix.yaml", kill_after=5)
        else:
            run(folder, f"mix-killed-{name}", *small[1:], "--steps=3", "--num_workers=1",
                mix="mix.yaml", ranks=ranks)  # fmt: skip
        rest = run(folder, f"mix-resumed-{name}", "--steps=6", resume=f"mix-killed-{name}",
                   mix="mix.yaml", ranks=ranks)  # fmt: skip
        for one, other in zip(rest, whole, strict=True):
            assert losses(one) == losses(other)[3:]
        _report(f"{ranks} processes, resumed from step 3: the losses of steps 4 to 6 are equal")


def _check_mix_is_deployed(folder: Path) -> None:
    """Check that checkpoints have one robot's statistics; without a robot, training fails."""
    from safetensors.numpy import load_file

    options = ["--steps=2", "--batch_size=2", "--num_workers=0"]
    for normalize, deploy in (("source", "so101"), ("source", "aloha"), ("mix", "")):
        name = f"mix-{normalize}-{deploy}"
        run(folder, name, *options, mix=f"mix-{normalize}.yaml", SEQRECORD_LEROBOT_DEPLOY=deploy)
        saved = folder / name / "checkpoints/last/pretrained_model"
        (path,) = saved.glob("policy_postprocessor*unnormalizer*.safetensors")
        mean = load_file(path)["action.mean"]
        _report(f"normalize={normalize}, deploy={deploy or None}: mean of actions {mean.tolist()}")
        if deploy:
            stats = json.loads((folder / deploy / "meta/stats.json").read_text())["action"]["mean"]
            wanted = np.zeros(6)
            wanted[[*_ROBOTS[deploy]["places"]]] = stats
            assert np.allclose(mean, wanted, atol=1e-5)
    environment = {**os.environ, "SEQRECORD_LEROBOT_MIX": f"{folder / 'mix-source.yaml'}"}
    program = [sys.executable, "-m", "tests.robots.training", "train", f"{folder / 'none'}"]
    arguments = ["--dataset.repo_id=robots", f"--output_dir={folder / 'none'}", *_ACT]
    start = [*program, "None", "None", "None", *arguments]
    refused = subprocess.run(start, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "a checkpoint contains the statistics of one robot" in refused.stderr, refused.stderr


_MEASURED = ["--save_checkpoint=false", "--batch_size=4"]


def measure_mix(folder: Path) -> None:
    """Print steps per second and the share of waiting time: a mix and the merged dataset.

    The merged one, with videos, is read by LeRobot and by seqrecord. A step sleeps for 40 ms.
    """
    folder = folder / "measured"
    if not folder.exists():
        make_robots(folder, (240, 320), merged_as="video")
    ways: list[tuple[str, dict[str, Any]]] = [
        ("merged, LeRobot's reader", {"data": "merged"}),
        ("merged, seqrecord's reader", {"data": "merged", "reader": "1"}),
        ("mix, seqrecord", {"mix": "mix.yaml"}),
    ]
    rows: dict[tuple[str, int], list[dict[str, float]]] = {}
    for turn, workers, (title, options) in itertools.product(range(3), (0, 2), ways):
        name = f"measure-mix-{ways.index((title, options))}-{workers}-{turn}"
        more = ["--steps=60", *_MEASURED, f"--num_workers={workers}"]
        (seen,) = run(folder, name, *more, step_seconds=0.04, **options)
        rows.setdefault((title, workers), []).append(_row(seen))
    _report_medians({"step": "40 ms"}, rows)


def measure(folder: Path) -> None:
    """Print medians of steps per second, the share of waiting time, and peak memory. Runs of both
    readers alternate; the step that computes takes nearly all the time, so it runs once."""
    kinds = (("ACT", ["--steps=12"], None, 1), ("40 ms", ["--steps=60"], 0.04, 3))
    for title, options, step_seconds, turns in kinds:
        rows: dict[tuple[str, int], list[dict[str, float]]] = {}
        ways = list(itertools.product(("lerobot", "seqrecord"), (0, 1, 2)))
        for turn, (reader, workers) in itertools.product(range(turns), ways):
            name = f"measure-{title.split()[0]}-{reader}-{workers}-{turn}"
            more = [*options, *_MEASURED, f"--num_workers={workers}"]
            number = {"lerobot": "0", "seqrecord": "1"}[reader]
            (seen,) = run(folder, name, *more, reader=number, step_seconds=step_seconds)
            rows.setdefault((reader, workers), []).append(_row(seen))
        _report_medians({"step": title}, rows)


def _row(seen: list[dict[str, Any]]) -> dict[str, float]:
    rest = seen[len(seen) // 4 :]  # without the start of the workers
    seconds = sum(step["seconds"] for step in rest)
    return {
        "steps_per_second": len(rest) / seconds,
        "waiting": sum(step["waited"] for step in rest) / seconds,
        "median_wait_ms": 1e3 * statistics.median(step["waited"] for step in rest),
        "peak_mib": seen[-1]["memory"] / 2**20,
    }


def _report_medians(
    about: dict[str, str], rows: dict[tuple[str, int], list[dict[str, float]]]
) -> None:
    for (reader, workers), runs in rows.items():
        medians = {k: round(statistics.median(r[k] for r in runs), 3) for k in runs[0]}
        _report(json.dumps({**about, "reader": reader, "workers": workers, **medians}))


def make_all(folder: Path) -> None:
    """Write the datasets of `check` and `check-mix`."""
    make(folder / "data")
    make_robots(folder)


def _report(text: str) -> None:
    """Print a line and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command."""
    command, folder, *rest = sys.argv[1:]
    if command == "train":
        kill_after, step_seconds, order, *arguments = rest
        train(
            folder,
            kill_after=None if kill_after == "None" else int(kill_after),
            step_seconds=None if step_seconds == "None" else float(step_seconds),
            order=None if order == "None" else order,
            arguments=arguments,
        )
    else:
        commands = {"make": make_all, "check": check, "check-mix": check_mix}
        commands |= {"measure": measure, "measure-mix": measure_mix}
        commands[command](Path(folder))


if __name__ == "__main__":
    main()
