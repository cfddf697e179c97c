"""The page kind of video: registered in `store.areas` for features with the codec `video`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.format.page_kinds import PageKind
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.video.config import MAX_GOP_FRAMES
from seqrecord.video.page_tables import min_video_bytes
from seqrecord.video.pages import VideoPageCodec

# Of a decoder, in frames of its feature: 16 reference and delayed frames of YUV 4:2:0, each half as
# large as RGB, and the converted frame. Measured at 3840x2160: 4.5 to 8.3 frames; rounded up, as
# the memory of a plan is a limit.
_DECODER_FRAMES = 9


class _Video(PageKind):
    name = "video"
    codec = VideoPageCodec
    max_chunk_frames = MAX_GOP_FRAMES  # decoding a frame requires all frames before it in its GOP
    shares_chunks = False
    decodes_in_order = True
    scales = True
    reference_copies = 2  # the range of the file, and the page with its bare packets

    def can_be_length(
        self,
        spec: FeatureSpec,  # noqa: ARG002
        length: npt.NDArray[Any],
        count: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        fits: npt.NDArray[np.bool_]
        fits = np.where(count == 0, length == 0, length >= min_video_bytes(count))
        return fits

    def may_refer(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        return True

    def decoding_unit(self, spec: FeatureSpec) -> int:
        # Of frames that were encoded here. Kept packets may have longer groups of pictures, which
        # costs decodes where a plan cuts them; usually their features name no `gop`.
        return int(spec.codec[0].get("gop", 0))

    def decoder_bytes(self, spec: FeatureSpec) -> int:
        return _DECODER_FRAMES * spec.nbytes

    def keeps_encoding(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        return True

    def is_lossy(self, spec: FeatureSpec) -> bool:
        return bool(spec.codec[0].get("codec") != "ffv1")

    def is_costly(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        return True

    def group(self, schema: Schema, number: int) -> Any:
        from seqrecord.video.group import VideoGroup  # the writer alone encodes

        return VideoGroup(schema, number)


VIDEO = _Video()
