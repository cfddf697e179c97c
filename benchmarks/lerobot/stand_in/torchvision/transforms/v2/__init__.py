"""`Transform`, base of a LeRobot class that the benchmark does not use."""

from __future__ import annotations

from torchvision.transforms.v2 import functional

__all__ = ["Transform", "functional"]


class Transform:
    """Empty base class."""
