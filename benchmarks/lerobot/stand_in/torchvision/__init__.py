"""A stand-in for torchvision in the environment of `make lerobot-env`: what LeRobot uses of it.

torchvision's builds need CUDA's libraries beside a CPU build of torch, and its later ones have no
`VideoReader`, which LeRobot's decoder `pyav` needs.
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
