"""Stand-in for the parts of torchvision that LeRobot uses, for `make lerobot-env`.

torchvision's builds need CUDA's libraries even with a CPU build of torch, and later versions lack
`VideoReader`, which LeRobot's decoder `pyav` uses.
"""

from __future__ import annotations

from torchvision import io, transforms

__all__ = ["get_video_backend", "io", "set_video_backend", "transforms"]
__version__ = "0.21.0"

_backend = "pyav"


def set_video_backend(name: str) -> None:
    global _backend
    _backend = name


def get_video_backend() -> str:
    return _backend
