"""What takes the batches: reading every page, a linear autoencoder, or a small U-Net."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.tartanair.loaders.base import Batch
from benchmarks.tartanair.timing import touch

__all__ = ["Consumer", "LinearAutoencoder", "UNet", "to_device"]

UNET_SIZE = (192, 256)  # pixels
UNET_BATCH = 64  # frames of a training step
AUTOENCODER_SIDE = 64  # pixels


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Every tensor on the device, after waiting for it; on a CPU one byte of every page is read."""
    tensors = {name: torch.as_tensor(v) for name, v in batch.items() if name != "episode"}
    if device.type == "cpu":
        for tensor in tensors.values():
            touch(tensor)
        return tensors
    tensors = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    torch.cuda.synchronize(device)
    return tensors


class LinearAutoencoder(nn.Module):
    """2.1 million parameters: 4096 inputs to 256 and back, as the published linear model has."""

    def __init__(self) -> None:
        super().__init__()
        pixels = AUTOENCODER_SIDE**2
        self.encoder = nn.Sequential(nn.Linear(pixels, 256), nn.ReLU())
        self.decoder = nn.Linear(256, pixels)

    def forward(self, batch: Batch) -> Tensor:
        """The loss for every frame's grey image, pooled to 64x64."""
        images = batch["image_left"].flatten(0, 1).float().mean(-1, keepdim=True) / 255
        pooled = functional.adaptive_avg_pool2d(images.movedim(-1, 1), AUTOENCODER_SIDE).flatten(1)
        loss: Tensor = functional.mse_loss(self.decoder(self.encoder(pooled)), pooled)
        return loss


class _Block(nn.Module):
    """ResNet-18's: two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class UNet(nn.Module):
    """Depth from RGB: an encoder with ResNet-18's blocks and a decoder that skips back to it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.down = nn.ModuleList(
            nn.Sequential(_Block(i, o, 2), _Block(o, o, 1)) for i, o in pairwise(widths)
        )
        self.up = nn.ModuleList(nn.Conv2d(o + i, i, 3, 1, 1) for i, o in pairwise(widths))
        self.head = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, batch: Batch) -> Tensor:
        """The loss of the logarithm of depth for up to `UNET_BATCH` frames of the batch."""
        images = batch["image_left"].flatten(0, 1)[:UNET_BATCH].movedim(-1, 1).float() / 255
        depth = batch["depth_left"].flatten(0, 1)[:UNET_BATCH, None]
        images = functional.interpolate(images, UNET_SIZE, mode="bilinear", antialias=True)
        depth = functional.interpolate(depth, UNET_SIZE)
        x = self.stem(images)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, skip in zip(reversed(self.up), reversed(skips), strict=True):
            x = functional.interpolate(x, skip.shape[-2:])
            x = functional.relu(up(torch.cat([x, skip], 1)))
        predicted = functional.interpolate(self.head(x), UNET_SIZE)
        return functional.l1_loss(predicted, torch.log(depth.clamp(0.1, 1000)))


class Consumer:
    """Takes an epoch of batches that are on the device: a training step on each, or none."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device = device
        self.framework = ""
        self._run = _drop
        if name != "touch":
            model = {"autoencoder": LinearAutoencoder, "unet": UNet}[name]().to(device)
            lightning = name == "autoencoder" and find_spec("pytorch_lightning") is not None
            self.framework = "lightning" if lightning else "torch"
            if lightning:
                import_module("pytorch_lightning")  # now, it takes seconds
            self._run = partial((_train_with_lightning if lightning else _train), model)

    def run(self, batches: Iterable[Batch]) -> None:
        """All steps are done when this returns."""
        self._run(batches)


def _drop(batches: Iterable[Batch]) -> None:
    for batch in batches:
        del batch


def _train(model: nn.Module, batches: Iterable[Batch]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch)
        loss.backward()
        optimizer.step()
        loss.item()
        del batch, loss  # before the next one: loaders reuse what is given back


def _train_with_lightning(model: nn.Module, batches: Iterable[Batch]) -> None:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Batch, _number: int) -> Tensor:
            loss: Tensor = self.model(batch)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    trainer = lightning.Trainer(
        max_epochs=1,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), _Once(batches))


class _Once:
    """Lightning wants to iterate over something, not with something."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)
