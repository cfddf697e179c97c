"""Small networks that Lightning trains on a loader's batches, by one thread of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.tartanair.loaders.base import Batch

__all__ = ["NETWORKS", "train"]


class Autoencoder(nn.Module):
    """The linear autoencoder of the published audio comparison, 2.1 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (16_000, 64, 32, 64, 16_000)
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.layers = nn.Sequential(layers[0], *(m for x in layers[1:] for m in (nn.ReLU(), x)))

    def forward(self, batch: Batch) -> torch.Tensor:
        sound = batch["audio"].float() / 32768
        return nn.functional.mse_loss(self.layers(sound), sound)


class UNet(nn.Module):
    """Depth of all frames of a clip from their images at half size, frames as channels."""

    def __init__(self, frames: int = 16, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv2d(*sizes, 3, 2, 1)
            for sizes in ((3 * frames, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(
            nn.Conv2d(*sizes, 3, 1, 1) for sizes in ((6 * width, 2 * width), (3 * width, frames))
        )

    def forward(self, batch: Batch) -> torch.Tensor:
        images, depth = batch["image_left"], batch["depth_left"]
        x = images.permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255
        levels = []
        for down in self.down:
            x = nn.functional.relu(down(x))
            levels.append(x)
        for number, up in enumerate(self.up):
            skipped = levels[-2 - number]
            x = up(torch.cat([nn.functional.interpolate(x, skipped.shape[-2:]), skipped], 1))
        return nn.functional.l1_loss(x, depth[..., ::2, ::2])


NETWORKS: dict[str, Callable[[], nn.Module]] = {"autoencoder": Autoencoder, "unet": UNet}


def train(name: str) -> Callable[[Iterator[Batch]], object]:
    """A function that trains a new network of `NETWORKS` on an epoch's batches; it goes on."""
    import pytorch_lightning as lightning

    torch.set_num_threads(1)  # leaves cores to the loader, and needs no barriers on a busy machine
    network = NETWORKS[name]()

    class Training(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Batch, _index: int) -> Any:
            return self.network(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    module = Training()

    def epoch(batches: Iterator[Batch]) -> None:
        trainer = lightning.Trainer(max_epochs=1, barebones=True, devices=1)
        trainer.fit(module, batches)

    return epoch
