"""`ToTensor`, LeRobot's conversion of images to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchvision.transforms import functional, v2

__all__ = ["ToTensor", "functional", "v2"]


class ToTensor:
    """uint8 images to float32 [C, H, W] from 0 to 1."""

    def __call__(self, picture: Any) -> torch.Tensor:
        array = np.array(picture)
        if array.ndim == 2:
            array = array[:, :, None]
        tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
        return tensor.to(torch.float32).div(255) if tensor.dtype == torch.uint8 else tensor
