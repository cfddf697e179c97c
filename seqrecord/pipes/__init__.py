"""The loaders that training code uses, each a thin shell around one `ClipLoader`."""

from seqrecord.pipes.streaming import (
    SeqRecordDataset,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordStream,
)

__all__ = [
    "SeqRecordDataset",
    "SeqRecordNode",
    "SeqRecordPipe",
    "SeqRecordStream",
]
