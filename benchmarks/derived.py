"""Encoding at each step against latents that were derived once: CPU seconds and calls by epoch.

    python -m benchmarks.derived FOLDER [--epochs 3] [--write]

Samples of a world model: 17 frames of 64x64 pixels from every fourth start, as a causal video
encoder with random weights turns them into latents [5, 8, 8, 8], with the 17 actions, and the
embedding of the task's text, one of three. One side encodes each batch in the training loop, the
other reads latents and embeddings that `seqrecord.derive` stored. Both get the same values, which
is checked. The decoding of the images counts for both sides, in
the first epoch only: frames stay in memory. `--write` writes the table into docs/derive.md.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import seqrecord
from benchmarks.prose import write as write_block
from benchmarks.timing import commit, machine, markdown
from seqrecord import SeqRecordPipe, SeqRecordWriter

__all__ = ["COLUMNS", "Encoder", "TextEncoder", "measure", "write"]

FRAMES, BATCH, SIDE = 17, 8, 64
CLIPS: dict[str, Any] = {
    "samples": seqrecord.samples.every(4),
    "windows": {"image": range(FRAMES), "action": range(FRAMES), "task": [0]},
}
TASKS = "open the drawer", "put the red cup into the drawer", "close it"


class Encoder(torch.nn.Module):
    """A causal video encoder: 1 + 4k frames become 1 + k latents, each of these and earlier ones.

    Counts its samples.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.space = torch.nn.Conv3d(3, 16, (1, 8, 8), stride=(1, 8, 8))
        self.time = torch.nn.Conv3d(16, 8, (4, 1, 1), stride=(4, 1, 1))
        self.num_samples = 0

    @torch.no_grad()
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Encode uint8 [B, 1 + 4k, height, width, 3] to bfloat16 [B, 1 + k, 8, h / 8, w / 8]."""
        self.num_samples += len(image)
        video = image.permute(0, 4, 1, 2, 3).float() / 255
        features = self.space(video).relu()
        padded = torch.cat([features[:, :, :1].expand(-1, -1, 3, -1, -1), features], dim=2)
        latents: torch.Tensor = self.time(padded)
        return latents.transpose(1, 2).bfloat16()


class TextEncoder(torch.nn.Module):
    """A layer of a language encoder: a text becomes a vector for each byte. Counts its texts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bytes = torch.nn.Embedding(256, 64)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval()
        self.num_texts = 0

    @torch.no_grad()
    def forward(self, text: str) -> torch.Tensor:
        """Encode a text of L bytes to bfloat16 [L, 64]."""
        self.num_texts += 1
        values: torch.Tensor = self.layer(self.bytes(torch.tensor([*text.encode()]))[None])
        return values[0].bfloat16()


def write(folder: Path, episodes: int = 12, length: int = 400) -> None:
    """Write a dataset with one camera and actions."""
    rng = np.random.default_rng(0)
    with SeqRecordWriter(folder, fps=15) as writer:
        for number in range(episodes):
            with writer.episode(f"{number:03d}") as episode:
                image = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
                for _ in range(length):
                    image = np.roll(image, 1, axis=1)
                    action = rng.normal(size=7).astype("f4")
                    task = TASKS[number % len(TASKS)]
                    episode.append({"image": image, "action": action, "task": task})


Encoders: TypeAlias = tuple[Encoder, TextEncoder]


def _counts(encoders: Encoders) -> tuple[int, int]:
    return encoders[0].num_samples, encoders[1].num_texts


def _epochs(
    pipe: SeqRecordPipe, epochs: int, encoders: Encoders | None
) -> Iterator[dict[str, Any]]:
    """Measure epochs; the sums of latents, actions and embeddings by sample are the result."""
    for epoch in range(epochs):
        counts = _counts(encoders) if encoders else (0, 0)
        begin, sums = time.process_time(), {}
        for batch in pipe:
            if encoders is not None:
                latents, start, actions = (
                    encoders[0](batch["image"]),
                    batch["start"],
                    batch["action"],
                )
                embeddings = [encoders[1](text) for (text,) in batch["task"]]
            else:
                latents, start = batch["latent"][:, 0], batch["source_start"][:, 0]
                actions = batch["action"][:, 0]
                embeddings = [embedding for (embedding,) in batch["task_embedding"]]
            columns = (
                latents.double().sum(dim=(1, 2, 3, 4)).tolist(),
                actions.double().sum(dim=(1, 2)).tolist(),
                [embedding.double().abs().sum().item() for embedding in embeddings],
            )
            for key, frame, *values in zip(batch["episode"], start.tolist(), *columns, strict=True):
                sums[key, frame] = values
        seconds = time.process_time() - begin
        ends = _counts(encoders) if encoders else (0, 0)
        num_encoded, num_texts = (end - count for end, count in zip(ends, counts, strict=True))
        yield {
            "epoch": epoch + 1,
            "CPU s": seconds,
            "encoded": num_encoded,
            "texts": num_texts,
            "sums": sums,
        }


COLUMNS = ("", "epoch", "CPU s per 1,000 samples", "samples encoded", "texts encoded")


def measure(folder: Path, epochs: int = 3) -> list[tuple[str, ...]]:
    """Return rows of a table; asserts that both deliver the same values."""
    records, latents = folder / "records", folder / "latents"
    if not records.exists():
        write(records)
    shutil.rmtree(latents, ignore_errors=True)
    online, once_only = (Encoder(), TextEncoder()), (Encoder(), TextEncoder())
    options: dict[str, Any] = {"batch_size": BATCH, "seed": 0, "last_batch": "keep"}
    pipe = SeqRecordPipe(records, features=["image", "action", "task"], **CLIPS, **options)
    rows = {"encoded at each step": [*_epochs(pipe, epochs, online)]}
    begin = time.process_time()
    seqrecord.derive(
        records,
        lambda batch: {"latent": once_only[0](batch["image"])},
        latents,
        features=["image"],
        keep=["action", "task"],
        per_text={"task": once_only[1]},
        batch_size=BATCH,
        **CLIPS,
    )
    seconds, (num_samples, num_texts) = time.process_time() - begin, _counts(once_only)
    derived = {"epoch": 0, "CPU s": seconds, "encoded": num_samples, "texts": num_texts}
    names = ["latent", "action", "source_start", "task_embedding"]
    pipe = SeqRecordPipe(latents, clip_len=1, features=names, **options)
    rows["derived once"] = [derived, *_epochs(pipe, epochs, None)]
    expected = rows["encoded at each step"][0]["sums"]
    for row in (*rows["encoded at each step"], *rows["derived once"][1:]):
        assert row["sums"].keys() == expected.keys()
        for key, values in row["sums"].items():
            np.testing.assert_allclose(values, expected[key], rtol=1e-2, atol=1)
    return [
        (
            way,
            f"{row['epoch']}" if row["epoch"] else "derive",
            f"{1000 * row['CPU s'] / len(expected):.2f}",
            f"{row['encoded']:,}",
            f"{row['texts']:,}",
        )
        for way, runs in rows.items()
        for row in runs
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/derive.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.folder, arguments.epochs)
    block = f"{markdown(COLUMNS, rows)}\n\nMeasured at `{commit()}` on {machine()}.\n"
    print(block)
    if arguments.write:
        write_block("docs/derive.md", "time saved", block)


if __name__ == "__main__":
    main()
