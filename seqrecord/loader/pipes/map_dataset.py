"""The public map-style dataset: clips by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.pipes.arguments import init_takes_arguments
from seqrecord.loader.pipes.callers import check_kept
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.map_clips import MapClips
from seqrecord.loader.pipes.options import DatasetOptions
from seqrecord.loader.pipes.shared_rows import SharedRow
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.units import MAX_INT, check_integer, check_positions


class SeqRecordMapDataset(TorchDataset[dict[str, Any]]):
    """Clips by number, for map-style training: `dataset[i]` is a clip as in `SeqRecordPipe`.

    Clips are numbered episode by episode, front to back, or in the order of the table `samples`.
    Random access decodes a frame again for every clip that contains it: streaming is much faster.

    With `collate_fn=seqrecord.collate`, a `DataLoader` requests the clips of a batch together:
    shared frames are decoded once, and the clips are views of one batch, so collating copies
    nothing. The memory of a batch is reused after its last reference is gone; a clip that you keep
    also keeps the memory of its batch.

    Example:
        clips = seqrecord.SeqRecordMapDataset("records/", clip_len=4)
        clip = clips[0]  # image: uint8 [4, height, width, 3]
        loader = torch.utils.data.DataLoader(clips, 2, collate_fn=seqrecord.collate)
    """

    @init_takes_arguments(DatasetOptions)
    def __init__(self, location: DatasetLike, options: DatasetOptions) -> None:
        """Open the dataset, and select its clips.

        Args:
            location: local path or URL, or a dataset from `seqrecord.open`.
        """
        self._options = options
        self._view = make_view(location, options)
        self._by_number = MapClips(self._view, options.memory_limit)
        self._epoch = SharedRow(np.zeros(1, np.int64))
        self.set_epoch(0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": self._view.portable(self._options)}

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for functions of `samples`, here and in workers; 0 by default.

        They may choose other clips: then a sampler needs the new length.
        """
        epoch = check_integer("epoch", epoch, least=0, most=MAX_INT)
        self._view.samples.clips_in(epoch)  # which may be none
        if self._view.samples.in_epoch(epoch).samples.repeat is not None:
            raise ClipError(
                "SeqRecordMapDataset gives each sample once",
                file=self.dataset.url,
                expected="samples without repeat; a sampler can weigh them",
            )
        self._epoch.values[0] = epoch

    @property
    def options(self) -> DatasetOptions:
        """The arguments of this dataset."""
        return self._options

    @property
    def dataset(self) -> Dataset:
        """The dataset of the clips, with the requested features."""
        return self._view.dataset

    @property
    def clips(self) -> ClipTable:
        """All clips of the epoch, and the numbers of skipped ones."""
        return self._view.samples.clips_in(int(self._epoch.values[0]))

    def __len__(self) -> int:
        return self.clips.num_clips

    def __getitem__(self, number: int) -> dict[str, Any]:
        [clip] = self._read([number])
        return clip

    def __getitems__(self, numbers: Sequence[int]) -> Sequence[dict[str, Any]]:
        """Return the clips of a batch; called by a `DataLoader`.

        They are read in one call as one batch, which `seqrecord.collate` returns without copying.
        If a subclass overrides only `__getitem__`, that method is called for each number.
        """
        cls, own = type(self), SeqRecordMapDataset
        if cls.__getitem__ is not own.__getitem__ and cls.__getitems__ is own.__getitems__:
            return [self[number] for number in numbers]
        return self._read(numbers) if len(numbers) else []

    def stats(self) -> dict[str, Any]:
        """Return statistics of this process.

        These are `bytes_read`; `frames_decoded`; `frames_from_cache`; `frames_mapped`, copies from
        mapped files, for each feature; `video_frames_decoded`,
        including reference frames; `bytes_from_chunk_store` and `peak_chunk_store_bytes`, of the
        memory for remote chunks; and `features_resident`, features whose frames are kept in memory
        once read.
        """
        report = self._by_number.stats.report()
        frames = ("frames_decoded", "frames_from_cache", "frames_mapped", "video_frames_decoded")
        nbytes = ("bytes_read", "bytes_from_chunk_store", "peak_chunk_store_bytes")
        found = {name: report[name] for name in (*nbytes, *frames)}
        return {**found, "features_resident": self._by_number.resident}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._view.describe()})"

    def _read(self, numbers: Sequence[int]) -> Sequence[dict[str, Any]]:
        """Read clips by number, in the form of `output`."""
        positions = check_positions(numbers, self.clips.num_clips, "clip")
        clips = self._by_number.read(positions, int(self._epoch.values[0]))
        if self._options.output == "torch":
            return clips
        check_kept(self)
        return clips.as_numpy()
