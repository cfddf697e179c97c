"""Networks of the four trainings, small enough for one thread, each with its loss.

Each is built from an example batch. Images are uint8 [B, N, H, W, 3] or, from LeRobot, floats from
0 to 1, [B, N, 3, H, W]. They are subsampled to about 48 lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Act", "DepthOfVideo", "Odometry", "WorldModel", "floats"]

Batch = Mapping[str, Any]

HEIGHT = 48  # pixels
WIDTH = 64  # of the inner layers


def floats(images: Tensor) -> Tensor:
    """Images as floats from 0 to 1, channels first."""
    return images if images.is_floating_point() else images.movedim(-1, -3).float() / 255


def _small(images: Tensor) -> Tensor:
    """Subsampled images, [B, N, 3, h, w]."""
    first = images.is_floating_point()  # channels
    step = max(1, images.shape[-2 if first else -3] // HEIGHT)
    return floats(images[..., ::step, ::step] if first else images[..., ::step, ::step, :])


def _convolutions(inputs: int) -> nn.Sequential:
    """Convolutions to an eighth of the height and width and `WIDTH` channels."""
    return nn.Sequential(
        nn.Conv2d(inputs, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, WIDTH, 3, 2, 1),
        nn.ReLU(),
    )


def _vector(inputs: int, outputs: int) -> nn.Sequential:
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, outputs))
    return nn.Sequential(_convolutions(inputs), *pooled)


class Odometry(nn.Module):
    """Predicts the change of pose between two frames."""

    def __init__(self, example: Batch) -> None:
        super().__init__()
        self.body = _vector(6, example["pose_left"].shape[-1])

    def forward(self, batch: Batch) -> Tensor:
        first, second = batch["pose_left"].float().unbind(1)
        pairs = _small(batch["image_left"]).flatten(1, 2)
        return functional.mse_loss(self.body(pairs), second - first)


class DepthOfVideo(nn.Module):
    """Predicts the log depth of each frame of a clip from the whole clip."""

    def __init__(self, _example: Batch) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(3, 12, (1, 3, 3), padding=(0, 1, 1)),
            nn.ReLU(),
            nn.Conv3d(12, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(12, 1, (1, 3, 3), padding=(0, 1, 1)),
        )

    def forward(self, batch: Batch) -> Tensor:
        depth = batch["depth_left"]
        step = max(1, depth.shape[-2] // HEIGHT)
        predicted = self.body(_small(batch["image_left"]).movedim(2, 1))[:, 0]
        return functional.l1_loss(predicted, torch.log(depth[..., ::step, ::step].clamp(0.1, 1000)))


class WorldModel(nn.Module):
    """Predicts the next frame of a sequence from earlier frames and the camera's motion."""

    def __init__(self, example: Batch) -> None:
        super().__init__()
        moves = example["pose_left"].shape[-1]
        self.encoder = _vector(3, WIDTH)
        self.memory = nn.GRU(WIDTH + moves, 2 * WIDTH, batch_first=True)
        self.decoder = nn.Linear(2 * WIDTH, 3 * 12 * 16)

    def forward(self, batch: Batch) -> Tensor:
        images = _small(batch["image_left"])
        codes = self.encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        moves = batch["pose_left"].float().diff(dim=1)
        states, _ = self.memory(torch.cat([codes[:, :-1], moves], 2))
        predicted = self.decoder(states).flatten(0, 1)
        wanted = functional.adaptive_avg_pool2d(images[:, 1:].flatten(0, 1), (12, 16))
        return functional.mse_loss(predicted, wanted.flatten(1))


class Act(nn.Module):
    """Predicts the next actions from an image per camera and the state: ACT without its VAE."""

    def __init__(self, example: Batch) -> None:
        super().__init__()
        _, count, size = example["action"].shape
        state = example["observation.state"].flatten(1).shape[1]
        self.camera = _convolutions(3)
        self.state = nn.Linear(state, WIDTH)
        self.queries = nn.Parameter(torch.randn(count, WIDTH))
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 2 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, size)

    def forward(self, batch: Batch) -> Tensor:
        cameras = [v for v in batch.values() if isinstance(v, Tensor) and v.ndim == 5]
        pictures = [self.camera(_small(v)[:, -1]).flatten(2).transpose(1, 2) for v in cameras]
        state = self.state(batch["observation.state"].flatten(1).float())[:, None]
        queries = self.queries.expand(len(state), -1, -1)
        decoded = self.transformer(torch.cat([state, *pictures], 1), queries)
        return functional.l1_loss(self.head(decoded), batch["action"].float())
