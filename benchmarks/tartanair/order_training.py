"""Effect of the clip order on accuracy: one small model, trained in four orders.

    python -m benchmarks.tartanair.order_training FOLDER [--seeds 5] [--resume] [--to PLACE]

Depth from colour, on rendered episodes; validation on other episodes of the same scenes. With one
seed the initial weights are the same for all orders, and so are an epoch's clips: only their order
differs. Results are order_training.json, .md and .png and order_errors.png. About 40 s a run on two
cores; no time is measured, so the machine need not be quiet.
"""

from __future__ import annotations

import fnmatch
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import seqrecord
from benchmarks.pages import code_of
from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.order_report import REFERENCE, STUDENT_T, draw, page
from benchmarks.timing import Result
from seqrecord import SeqRecordPipe, open_source

HEIGHT, WIDTH = 64, 96
CLIP_LEN, BATCH_SIZE = 8, 8
FEATURES = ["image_left", "depth_left"]
TRAIN, VALID = "*/P000", "*/P001"
LEAST_DEPTH, MOST_DEPTH = 0.5, 100.0  # metres
CURVE_STEPS = 10  # averaged in each point of the loss curve

Name = tuple[str, int]
Order = Callable[["Setup", Path, int, int], Iterator[list[Name]]]


@dataclass(frozen=True)
class Setup:
    """Data and length of a training: one episode of `frames` per scene, clips with stride 1."""

    scenes: int = 8
    frames: int = 200
    epochs: int = 2
    buffer: int = 100  # clips

    @property
    def num_clips(self) -> int:
        return self.scenes * (self.frames - CLIP_LEN + 1)

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last one may have fewer clips."""
        return -(-self.num_clips // BATCH_SIZE)


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
    # No batch normalization: batches of a single episode would distort its statistics.
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after), nn.ReLU(inplace=True)
    )


# The orders: batches of names of clips, (episode, start)


def sequential(_setup: Setup, records: Path, _seed: int, _epoch: int) -> Iterator[list[Name]]:
    """Episode after episode, front to back."""
    yield from _names_of(_pipe(records, shuffle=False))


def buffered(setup: Setup, records: Path, seed: int, epoch: int) -> Iterator[list[Name]]:
    """Sequential reading through a shuffle buffer."""
    rng = np.random.default_rng([seed, epoch])
    buffer: list[Name] = []
    order: list[Name] = []
    for name in _in_order(records):
        if len(buffer) < setup.buffer:
            buffer.append(name)
        else:
            place = int(rng.integers(setup.buffer))
            order.append(buffer[place])
            buffer[place] = name
    yield from _batches(order + [buffer[i] for i in rng.permutation(len(buffer))])


def planned(_setup: Setup, records: Path, seed: int, epoch: int) -> Iterator[list[Name]]:
    """`SeqRecordPipe` with default settings."""
    pipe = _pipe(records, shuffle=True, seed=seed)
    pipe.set_epoch(epoch)
    yield from _names_of(pipe)


def permuted(_setup: Setup, records: Path, seed: int, epoch: int) -> Iterator[list[Name]]:
    """A full shuffle: every clip may follow every other."""
    names = _in_order(records)
    order = np.random.default_rng([seed, epoch]).permutation(len(names))
    yield from _batches([names[i] for i in order])


def _pipe(records: Path, **settings: Any) -> SeqRecordPipe:
    # All features: the memory per frame determines how well the plan can mix.
    return SeqRecordPipe(
        records,
        clip_len=CLIP_LEN,
        features=FEATURES,
        episodes=TRAIN,
        batch_size=BATCH_SIZE,
        **settings,
    )


def _names_of(pipe: SeqRecordPipe) -> Iterator[list[Name]]:
    for batch in pipe:
        yield list(zip(batch["episode"], batch["start"].tolist(), strict=True))


def _in_order(records: Path) -> list[Name]:
    return [name for batch in _names_of(_pipe(records, shuffle=False)) for name in batch]


def _batches(names: Sequence[Name]) -> Iterator[list[Name]]:
    for at in range(0, len(names), BATCH_SIZE):
        yield list(names[at : at + BATCH_SIZE])


ORDERS: dict[str, Order] = {
    "sequential": sequential,
    "buffer": buffered,
    "seqrecord": planned,
    REFERENCE: permuted,
}


# Training


class Frames:
    """Decoded frames of a set of episodes, shared by all orders."""

    def __init__(self, records: Path, episodes: str) -> None:
        self._image: dict[str, torch.Tensor] = {}
        self._depth: dict[str, torch.Tensor] = {}
        with seqrecord.open(records, features=FEATURES) as dataset:
            for key in fnmatch.filter(dataset.episodes, episodes):
                arrays = dataset.episodes[key].read(range(len(dataset.episodes[key])))
                self._image[key] = torch.from_numpy(arrays["image_left"])
                depth = torch.from_numpy(arrays["depth_left"])
                self._depth[key] = depth.clamp(LEAST_DEPTH, MOST_DEPTH).log()

    def clips(self, names: Sequence[Name]) -> tuple[torch.Tensor, torch.Tensor]:
        """Frames of clips, concatenated: images, uint8 [F, H, W, 3], and log depth, [F, H, W]."""
        return (
            torch.cat([self._image[key][start : start + CLIP_LEN] for key, start in names]),
            torch.cat([self._depth[key][start : start + CLIP_LEN] for key, start in names]),
        )

    def all(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every frame once, episode by episode, in the form of `clips`."""
        for key, image in self._image.items():
            yield image, self._depth[key]


def train(
    setup: Setup,
    records: Path,
    train_on: Frames,
    validate_on: Frames,
    order: str,
    seed: int,
) -> Result:
    """Train from scratch: the loss curve, and the validation errors after each epoch.

    Raises `RuntimeError` if an epoch of the order lacks or repeats clips.
    """
    torch.manual_seed(seed)
    model = DepthNet()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setup.epochs * setup.steps)
    every_clip = _in_order(records)
    losses: list[float] = []
    errors = []
    for epoch in range(setup.epochs):
        seen: list[Name] = []
        for names in ORDERS[order](setup, records, seed, epoch):
            loss = _loss(model, *train_on.clips(names))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            seen += names
        if sorted(seen) != sorted(every_clip):
            raise RuntimeError(f"{order}: an epoch that is not every clip once")
        errors.append(validate(model, validate_on))
    curve = [
        statistics.mean(losses[at : at + CURVE_STEPS]) for at in range(0, len(losses), CURVE_STEPS)
    ]
    return {"order": order, "seed": seed, "losses": curve, "errors": errors}


@torch.no_grad()
def validate(model: nn.Module, frames: Frames) -> float:
    """Mean absolute error of log depth."""
    losses = [(_loss(model, image, depth).item(), len(image)) for image, depth in frames.all()]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def _loss(model: nn.Module, image: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(model(image)[:, 0], depth)


# Runs


def main(arguments: Sequence[str] | None = None) -> None:
    default = Setup()
    parser = make_parser(__doc__, repeats=1)
    parser.add_argument("--seeds", type=int, choices=sorted(STUDENT_T), default=5)
    parser.add_argument("--epochs", type=int, default=default.epochs)
    parser.add_argument("--scenes", type=int, default=default.scenes)
    parser.add_argument("--frames", type=int, default=default.frames, help="of a scene's episode")
    parser.add_argument("--buffer", type=int, default=default.buffer, help="clips")
    options = parser.parse_args(arguments)
    setup = Setup(options.scenes, options.frames, options.epochs, options.buffer)
    settings = {**asdict(setup), "clips": setup.num_clips, "clip_len": CLIP_LEN}
    settings |= {"batch_size": BATCH_SIZE, "curve_steps": CURVE_STEPS, "torch": torch.__version__}
    code = code_of("tartanair/order_training.md")
    suite = Suite(options, settings, "order_training", code=code)
    if not options.report:
        records = prepare(suite.folder, setup)
        frames = {episodes: Frames(records, episodes) for episodes in (TRAIN, VALID)}
        runs = {
            f"{order}/{seed}": partial(
                train, setup, records, frames[TRAIN], frames[VALID], order, seed
            )
            for seed in range(options.seeds)
            for order in ORDERS
        }
        suite.take_turns(suite.wanted(runs))
    for folder in filter(None, (suite.folder, options.to)):
        draw(folder, suite.document)
    suite.publish(page, "order_training")


def prepare(folder: Path, setup: Setup) -> Path:
    """Render and pack the episodes unless they exist; returns the records' folder."""
    size = f"{setup.scenes}x{setup.frames}"
    tree, records = folder / f"order-tree-{size}", folder / f"order-records-{size}"
    if not (records / "manifest.json").exists():
        for scene in tqdm(range(setup.scenes), unit="scene"):
            shutil.rmtree(tree / f"scene{scene}", ignore_errors=True)  # of an interrupted run
            generate(
                tree,
                env=f"scene{scene}",
                episodes=[setup.frames, setup.frames // 4],
                height=HEIGHT,
                width=WIDTH,
                seed=scene,
                modalities=["image", "depth"],
            )
        shutil.rmtree(records, ignore_errors=True)
        seqrecord.convert(open_source(tree), records, workers=1, codecs="raw")
    return records


if __name__ == "__main__":
    main()
