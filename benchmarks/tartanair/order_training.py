"""Whether the order of clips costs accuracy: one small model, trained in four orders.

    python -m benchmarks.tartanair.order_training FOLDER [--seeds 5] [--epochs 2]

Depth from colour, on rendered episodes; validation on other episodes of the same scenes. With one
seed the initial weights are the same for all orders, and the clips are the same: only their order
differs. Prints a Markdown table, writes FOLDER/order_training.json and a plot beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import seqrecord
from benchmarks.tartanair.generate import generate
from seqrecord.pipes import SeqRecordDataset, SeqRecordPipe
from seqrecord.sources import open_source

HEIGHT, WIDTH = 64, 96
SCENES = 8
TRAIN_FRAMES, VALID_FRAMES = 200, 48  # an episode of each in every scene
CLIP_LEN, BATCH_SIZE = 8, 8
BUFFER = 100  # clips
FEATURES = ["image_left", "depth_left"]
TRAIN, VALID = "*/P000", "*/P001"
LEAST_DEPTH, MOST_DEPTH = 0.5, 100.0  # metres
CURVE = 20  # steps that a point of the loss curve is the mean of
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}  # 95 %, by runs

Clip = dict[str, Any]
Order = Callable[[Path, int, int], Iterator[Clip]]


class DepthNet(nn.Module):
    """Predicts log depth, [B, 1, H, W], from colour, uint8 [B, H, W, 3]. About 0.1 M parameters."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _block(before, after, stride=2) for before, after in pairwise(sizes)
        )
        self.up = nn.ModuleList(
            _block(before + skipped, skipped)
            for before, skipped in zip(sizes[:1:-1], sizes[-2:0:-1], strict=True)
        )
        self.head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = image.permute(0, 3, 1, 2).float() / 255 - 0.5
        size, skips = x.shape[2:], []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = functional.interpolate(x, size=skip.shape[2:], mode="nearest")
            x = block(torch.cat([x, skip], 1))
        depth: torch.Tensor = self.head(x)
        return functional.interpolate(depth, size=size, mode="bilinear")


def _block(before: int, after: int, stride: int = 1) -> nn.Module:
    # Not batch normalization: it would suffer from batches of one episode for a reason of its own.
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after), nn.ReLU(inplace=True)
    )


def sequential(records: Path, _seed: int, _epoch: int) -> Iterator[Clip]:
    """Episode after episode, front to back."""
    yield from _pipe(records, shuffle=False, batch_size=BATCH_SIZE)


def buffered(records: Path, seed: int, epoch: int) -> Iterator[Clip]:
    """Sequential reading through a buffer, of which a random clip is taken."""
    rng = np.random.default_rng([seed, epoch])
    buffer: list[Clip] = []
    batch: list[Clip] = []
    for clip in _pipe(records, shuffle=False):
        if len(buffer) < BUFFER:
            buffer.append(clip)
            continue
        place = int(rng.integers(BUFFER))
        batch.append(buffer[place])
        buffer[place] = clip
        if len(batch) == BATCH_SIZE:
            yield _stacked(batch)
            batch = []
    batch += [buffer[i] for i in rng.permutation(len(buffer))]
    yield from _batches(batch)


def planned(records: Path, seed: int, epoch: int) -> Iterator[Clip]:
    """`SeqRecordPipe` as it comes."""
    pipe = _pipe(records, shuffle=True, batch_size=BATCH_SIZE, seed=seed)
    pipe.set_epoch(epoch)
    yield from pipe


def permuted(records: Path, seed: int, epoch: int) -> Iterator[Clip]:
    """A full shuffle: every clip may follow every other."""
    dataset = SeqRecordDataset(records, clip_len=CLIP_LEN, features=FEATURES, episodes=TRAIN)
    order = np.random.default_rng([seed, epoch]).permutation(len(dataset))
    for at in range(0, len(order), BATCH_SIZE):
        yield _stacked([dataset[int(i)] for i in order[at : at + BATCH_SIZE]])


ORDERS: dict[str, Order] = {
    "sequential": sequential,
    f"{BUFFER}-clip buffer": buffered,
    "seqrecord": planned,
    "full shuffle": permuted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    records = prepare(arguments.folder)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ORDERS}
    todo = [(seed, name) for seed in range(arguments.seeds) for name in ORDERS]
    for seed, name in tqdm(todo, unit="run"):
        runs[name].append(train(ORDERS[name], records, seed, arguments.epochs))
    document = {"epochs": arguments.epochs, "curve_steps": CURVE, "runs": runs}
    (arguments.folder / "order_training.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table(runs))


def prepare(folder: Path) -> Path:
    """Render and pack the episodes, unless they are there; the records."""
    tree, records = folder / "order-tree", folder / "order-records"
    if not (records / "manifest.json").exists():
        for scene in tqdm(range(SCENES), unit="scene"):
            if not (tree / f"scene{scene}").exists():
                generate(
                    tree,
                    env=f"scene{scene}",
                    episodes=[TRAIN_FRAMES, VALID_FRAMES],
                    height=HEIGHT,
                    width=WIDTH,
                    seed=scene,
                    modalities=["image", "depth"],
                )
        seqrecord.convert(open_source(tree), records, codecs="raw")
    return records


def train(order: Order, records: Path, seed: int, epochs: int) -> dict[str, Any]:
    """Train from scratch: the loss curve, and the validation errors after each epoch."""
    torch.manual_seed(seed)
    model = DepthNet()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    num_clips = SCENES * (TRAIN_FRAMES - CLIP_LEN + 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, epochs * -(-num_clips // BATCH_SIZE)
    )
    losses: list[float] = []
    errors = []
    for epoch in range(epochs):
        seen = 0
        for batch in order(records, seed, epoch):
            loss = _loss(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            seen += len(batch["image_left"])
        assert seen == num_clips, "an order left clips out"
        errors.append(validate(model, records))
    means = [statistics.mean(losses[at : at + CURVE]) for at in range(0, len(losses), CURVE)]
    return {"seed": seed, "losses": means, "errors": errors}


@torch.no_grad()
def validate(model: nn.Module, records: Path) -> float:
    """Mean absolute error of log depth on the other episodes."""
    pipe = SeqRecordPipe(
        records,
        clip_len=1,
        features=FEATURES,
        episodes=VALID,
        shuffle=False,
        batch_size=BATCH_SIZE * CLIP_LEN,
    )
    losses = [(_loss(model, batch).item(), len(batch["image_left"])) for batch in pipe]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def _loss(model: nn.Module, batch: Clip) -> torch.Tensor:
    depth = batch["depth_left"].flatten(0, 1).clamp(LEAST_DEPTH, MOST_DEPTH).log()
    predicted = model(batch["image_left"].flatten(0, 1))[:, 0]
    return functional.l1_loss(predicted, depth)


def _pipe(records: Path, **settings: Any) -> SeqRecordPipe:
    return SeqRecordPipe(records, clip_len=CLIP_LEN, features=FEATURES, episodes=TRAIN, **settings)


def _stacked(clips: Sequence[Clip]) -> Clip:
    return {name: torch.stack([clip[name] for clip in clips]) for name in FEATURES}


def _batches(clips: Sequence[Clip]) -> Iterator[Clip]:
    for at in range(0, len(clips), BATCH_SIZE):
        yield _stacked(clips[at : at + BATCH_SIZE])


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The last validation error by order: mean and 95 % interval over seeds, and by pairs.

    The last column is the mean of the differences, seed by seed, from the full shuffle.
    """
    best = [run["errors"][-1] for run in runs["full shuffle"]]
    lines = ["| order | validation error | above a full shuffle, same seed |", "|---|---|---|"]
    for name, results in runs.items():
        errors = [run["errors"][-1] for run in results]
        differences = [error - other for error, other in zip(errors, best, strict=True)]
        lines.append(f"| {name} | {interval(errors)} | {interval(differences)} |")
    return "\n".join(lines)


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % confidence interval, by Student's t."""
    if len(values) not in STUDENT_T:
        return f"{statistics.mean(values):.4f}"
    half = STUDENT_T[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


if __name__ == "__main__":
    main()
