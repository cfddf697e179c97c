"""`VideoReader` with the steps of torchvision 0.21 and its backend `pyav`."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["VideoReader"]


class VideoReader:
    """The frames of a video from the last `seek` on: `data`, uint8 [3, H, W], and `pts` in s."""

    def __init__(self, src: str, _stream: str = "video") -> None:
        import av

        self.container = av.open(src, metadata_errors="ignore")
        self._frames = self.container.decode(video=0)

    def __next__(self) -> dict[str, Any]:
        frame = next(self._frames)
        image = torch.from_numpy(frame.to_rgb().to_ndarray()).permute(2, 0, 1)
        return {"data": image, "pts": float(frame.pts * frame.time_base)}

    def __iter__(self) -> VideoReader:
        return self

    def seek(self, seconds: float, keyframes_only: bool = False) -> VideoReader:  # noqa: ARG002
        """Seek to the preceding keyframe, regardless of `keyframes_only`: PyAV's only mode."""
        stream = self.container.streams.video[0]
        offset = round(seconds / stream.time_base)
        self.container.seek(offset, backward=True, any_frame=False, stream=stream)
        self._frames = self.container.decode(video=0)
        return self
