"""LeRobot derives a class from `Transform`, which the benchmark does not use."""

from __future__ import annotations

from torchvision.transforms.v2 import functional

__all__ = ["Transform", "functional"]


class Transform:
    """A base class, no more."""
