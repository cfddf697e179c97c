"""`lerobot-train` itself, with our reader and with its own: `make test-lerobot`, by hand.

By a Python with lerobot and the plug-in of integrations/lerobot: `check FOLDER` compares losses,
`measure FOLDER` prints the table of docs/from-lerobot.md as JSON. Both start `train …`, which is
`lerobot-train` that writes down each step.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

SEED = 7
_SIDES = {"front": (96, 128), "wrist": (96, 128), "top": (480, 640)}
_LENGTHS = (60, 45, 70, 50)
_AXES = ["height", "width", "channels"]
# Without what the model draws: after `--resume`, lerobot 0.6.1 draws other numbers for it.
_POLICY = [
    "--policy.dropout=0",
    "--policy.use_vae=false",
    "--policy.type=act",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.pretrained_backbone_weights=null",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
    "--policy.dim_model=64",
    "--policy.dim_feedforward=128",
]


def make(root: Path) -> None:
    """Four episodes, two small cameras and a large one, written by lerobot."""
    from tests.lerobot_data import write_dataset

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


# --- the command, as a child


def train(
    out: str, *, kill_after: int | None, step_seconds: float | None, arguments: list[str]
) -> None:
    """`lerobot-train ARGUMENTS`; a line of JSON for each step goes to `out`.RANK.

    With `step_seconds` a step sleeps instead of computing.
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
    sys.argv = ["lerobot-train", *arguments]
    lerobot_train.main()


class _PeakMemory:
    """The most that this process and its children have held, pages in common counted once."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        import psutil

        own = psutil.Process()
        while True:
            held = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    held += process.memory_full_info().pss
                except psutil.Error:  # it has ended
                    continue
            self.bytes = max(self.bytes, held)
            time.sleep(0.5)


# --- who starts it


def run(
    folder: Path,
    name: str,
    *options: str,
    reader: str = "0",
    ranks: int = 1,
    kill_after: int | None = None,
    step_seconds: float | None = None,
    resume: str | None = None,
) -> list[list[dict[str, Any]]]:
    """What `train` wrote, a list of steps for each rank."""
    out = folder / f"{name}.jsonl"
    if resume is None:
        data = ["--dataset.repo_id=a/test", f"--dataset.root={folder / 'data'}", f"--seed={SEED}"]
        arguments = [f"--output_dir={folder / name}", *data, *_POLICY, *options]
    else:
        config = folder / resume / "checkpoints/last/pretrained_model/train_config.json"
        arguments = [f"--config_path={config}", "--resume=true", *options]
    program = [
        "-m",
        "tests.lerobot_training",
        "train",
        f"{out}",
        f"{kill_after}",
        f"{step_seconds}",
    ]
    if ranks == 1:
        start = [sys.executable, *program]
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        start = [sys.executable, *launch, *program]
    environment = {**os.environ, "SEQRECORD_LEROBOT": reader, "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("w") as log:
        done = subprocess.run([*start, *arguments], env=environment, stdout=log, stderr=log)
    expected = 0 if kill_after is None else -signal.SIGKILL
    assert done.returncode == expected, (folder / f"{name}.log").read_text()[-3000:]
    return [
        [json.loads(line) for line in Path(f"{out}.{rank}").read_text().splitlines()]
        for rank in range(ranks)
    ]


def losses(steps: list[dict[str, Any]]) -> list[tuple[list[int], float]]:
    """Which frames each step took and its loss, to the last bit."""
    return [(step["indices"], step["loss"]) for step in steps]


def check(folder: Path) -> None:
    """Raise `AssertionError` unless both readers train alike."""
    order: list[list[int]] = []
    small = ["--steps=6", "--save_freq=3", "--batch_size=2", "--dataset.video_backend=pyav"]
    for workers in (0, 2):
        more = [*small, f"--num_workers={workers}"]
        (theirs,) = run(folder, f"theirs-{workers}", *more)
        (ours,) = run(folder, f"class-{workers}", *more, reader="class")
        assert losses(ours) == losses(theirs)
        say(f"{workers} workers, order of theirs: the losses of {len(ours)} steps are the same")
        order = [step["indices"] for step in theirs]
    (whole,) = run(folder, "whole", *small, "--num_workers=2", reader="1")
    assert [step["indices"] for step in whole] != order
    run(folder, "killed", *small, "--num_workers=2", reader="1", kill_after=5)
    (rest,) = run(folder, "resumed", reader="1", resume="killed")
    assert losses(rest) == losses(whole)[3:]
    say("killed after 5 steps, resumed from 3: the losses of steps 4 to 6 are the same")
    two = [*small, "--num_workers=1"]
    expected = run(folder, "theirs-two", *two, ranks=2)
    seen = run(folder, "class-two", *two, ranks=2, reader="class")
    assert [losses(steps) for steps in seen] == [losses(steps) for steps in expected]
    planned = run(folder, "two", *two, ranks=2, reader="1")
    taken = [i for steps in planned for step in steps for i in step["indices"]]
    assert len(taken) == len(set(taken)) == 2 * 6 * 2
    say("two processes: the losses are the same; the plan gives no frame twice")


def measure(folder: Path) -> None:
    """Print steps a second, the share of time that steps wait, and peak memory: medians of runs,
    which take turns. The step that computes is all of its training's time, so it runs once."""
    kinds = (("ACT", ["--steps=12"], None, 1), ("40 ms", ["--steps=60"], 0.04, 3))
    for title, options, step_seconds, turns in kinds:
        rows: dict[tuple[str, int], list[dict[str, float]]] = {}
        ways = list(itertools.product(("lerobot", "seqrecord"), (0, 1, 2)))
        for turn, (reader, workers) in itertools.product(range(turns), ways):
            (seen,) = run(
                folder,
                f"measure-{title.split()[0]}-{reader}-{workers}-{turn}",
                *options,
                "--save_checkpoint=false",
                "--batch_size=4",
                f"--num_workers={workers}",
                reader={"lerobot": "0", "seqrecord": "1"}[reader],
                step_seconds=step_seconds,
            )
            rest = seen[len(seen) // 4 :]  # workers have started
            seconds = sum(step["seconds"] for step in rest)
            row = {
                "steps_per_second": len(rest) / seconds,
                "waiting": sum(step["waited"] for step in rest) / seconds,
                "median_wait_ms": 1e3 * statistics.median(step["waited"] for step in rest),
                "peak_mib": seen[-1]["memory"] / 2**20,
            }
            rows.setdefault((reader, workers), []).append(row)
        for (reader, workers), runs in rows.items():
            medians = {k: round(statistics.median(r[k] for r in runs), 3) for k in runs[0]}
            say(json.dumps({"step": title, "reader": reader, "workers": workers, **medians}))


def say(text: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command."""
    command, folder, *rest = sys.argv[1:]
    if command == "train":
        kill_after, step_seconds, *arguments = rest
        train(
            folder,
            kill_after=None if kill_after == "None" else int(kill_after),
            step_seconds=None if step_seconds == "None" else float(step_seconds),
            arguments=arguments,
        )
    else:
        {"make": lambda path: make(path / "data"), "check": check, "measure": measure}[command](
            Path(folder)
        )


if __name__ == "__main__":
    main()
