"""Encoding at each step against latents that were derived once: CPU seconds and calls by epoch.

    python -m benchmarks.derived FOLDER [--epochs 3]

Samples of a world model: 17 frames of 64x64 pixels from every fourth start, as a causal video
encoder with random weights turns them into latents [5, 8, 8, 8], with the 17 actions. One side
encodes each batch in the training loop, the other reads latents that `seqrecord.derive` stored.
Both get the same latents, which is checked. The decoding of the images counts for both sides, in
the first epoch only: frames stay in memory.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import seqrecord
from benchmarks.timing import machine, markdown
from seqrecord import SeqRecordPipe, SeqRecordWriter

__all__ = ["COLUMNS", "Encoder", "measure", "write"]

FRAMES, BATCH, SIDE = 17, 8, 64
CLIPS: dict[str, Any] = {
    "samples": seqrecord.samples.every(4),
    "windows": {"image": range(FRAMES), "action": range(FRAMES)},
}


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


def write(folder: Path, episodes: int = 12, length: int = 400) -> None:
    """Write a dataset with one camera and actions."""
    rng = np.random.default_rng(0)
    with SeqRecordWriter(folder, fps=15) as writer:
        for number in range(episodes):
            with writer.episode(f"{number:03d}") as episode:
                image = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
                for _ in range(length):
                    image = np.roll(image, 1, axis=1)
                    episode.append({"image": image, "action": rng.normal(size=7).astype("f4")})


def _epochs(pipe: SeqRecordPipe, epochs: int, encoder: Encoder | None) -> Iterator[dict[str, Any]]:
    """Measure epochs; the sums of latents and actions by sample are the result."""
    for epoch in range(epochs):
        calls = encoder.num_samples if encoder else 0
        begin, sums = time.process_time(), {}
        for batch in pipe:
            latents = encoder(batch["image"]) if encoder else batch["latent"][:, 0]
            start = batch["start"] if encoder else batch["source_start"][:, 0]
            actions = batch["action"] if encoder else batch["action"][:, 0]
            both = latents.double().sum(dim=(1, 2, 3, 4)), actions.double().sum(dim=(1, 2))
            for key, frame, *values in zip(
                batch["episode"], start.tolist(), *(one.tolist() for one in both), strict=True
            ):
                sums[key, frame] = values
        num_encoded = (encoder.num_samples if encoder else 0) - calls
        yield {
            "epoch": epoch + 1,
            "samples": len(sums),
            "CPU s": time.process_time() - begin,
            "encoded": num_encoded,
            "sums": sums,
        }


COLUMNS = ("", "epoch", "CPU s per 1,000 samples", "samples encoded")


def measure(folder: Path, epochs: int = 3) -> list[tuple[str, str, str, str]]:
    """Return rows of a table; asserts that both deliver the same values."""
    records, latents = folder / "records", folder / "latents"
    if not records.exists():
        write(records)
    shutil.rmtree(latents, ignore_errors=True)
    online, once_only = Encoder(), Encoder()
    options: dict[str, Any] = {"batch_size": BATCH, "seed": 0, "last_batch": "keep"}
    pipe = SeqRecordPipe(records, features=["image", "action"], **CLIPS, **options)
    rows = {"encoded at each step": [*_epochs(pipe, epochs, online)]}
    begin = time.process_time()
    seqrecord.derive(
        records,
        lambda batch: {"latent": once_only(batch["image"])},
        latents,
        features=["image"],
        keep=["action"],
        batch_size=BATCH,
        **CLIPS,
    )
    derived = {"epoch": 0, "CPU s": time.process_time() - begin, "encoded": once_only.num_samples}
    pipe = SeqRecordPipe(
        latents, clip_len=1, features=["latent", "action", "source_start"], **options
    )
    rows["latents derived once"] = [derived, *_epochs(pipe, epochs, None)]
    expected = rows["encoded at each step"][0]["sums"]
    for row in (*rows["encoded at each step"], *rows["latents derived once"][1:]):
        assert row["sums"].keys() == expected.keys()
        for key, values in row["sums"].items():
            np.testing.assert_allclose(values, expected[key], rtol=1e-2, atol=1)
    return [
        (
            way,
            f"{row['epoch']}" if row["epoch"] else "derive",
            f"{1000 * row['CPU s'] / len(expected):.2f}",
            f"{row['encoded']:,}",
        )
        for way, runs in rows.items()
        for row in runs
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.folder, arguments.epochs)
    print(f"{machine()}\n")
    print(markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
