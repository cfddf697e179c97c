"""A TartanAir tree as recordings."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.tartanair.compare.recordings import Episode, Feature, Frame, Recordings
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset

__all__ = ["Tree"]


@dataclass(frozen=True)
class Tree(Recordings):
    """The frames of a tree that have all features: TartanAir's last frame has no flow.

    `Tree.open` lists the files once and remembers the listing in the folder `cache`.
    """

    @classmethod
    def open(cls, root: Path, features: Sequence[str], cache: Path) -> Tree:
        made = {"root": str(root.resolve()), "features": list(features)}
        name = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:12]
        file = cache / f"tree-{name}.json"
        if file.exists():
            saved = json.loads(file.read_text())
            return cls(
                root,
                {n: Feature(f["dtype"], tuple(f["shape"])) for n, f in saved["features"].items()},
                tuple(Episode(**episode) for episode in saved["episodes"]),
            )
        dataset = RawFilesDataset(root, clip_len=1, features=features)
        first = dataset[0]
        tree = cls(
            root,
            {
                name: Feature(first[name].numpy().dtype.str, tuple(first[name].shape[1:]))
                for name in features
            },
            tuple(itertools.starmap(Episode, Counter(key for key, _ in dataset.places()).items())),
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            json.dumps(
                {
                    "features": {name: asdict(f) for name, f in tree.features.items()},
                    "episodes": [asdict(episode) for episode in tree.episodes],
                }
            )
        )
        return tree

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        """Each episode with its frames, which must be taken before the next episode's."""
        dataset = RawFilesDataset(self.root, clip_len=1, features=list(self.features))
        numbers = iter(range(len(dataset)))

        def frames(count: int) -> Iterator[Frame]:
            for number in itertools.islice(numbers, count):
                sample = dataset[number]
                yield {name: sample[name].numpy()[0] for name in self.features}

        for episode in self.episodes:
            yield episode, frames(episode.num_frames)
