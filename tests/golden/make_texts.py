"""Writes the golden dataset `texts`, with a dictionary.

`python -m tests.golden.make_texts` writes a new one; committed files must not change.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from seqrecord.store.bfloat16 import as_words
from seqrecord.store.format.text_keys import FEATURE, TEXT, key_of_text
from tests.store.test_golden import GOLDEN, describe

TEXTS = "open the door", "öffne die Tür", ""


def write(folder: Path) -> None:
    """Write the dataset and its description into `folder`."""
    root, frames, values = (
        folder / "texts",
        dict[str, list[dict[str, Any]]](),
        dict[str, object](),
    )
    with seqrecord.SeqRecordWriter(root, codecs="raw") as writer:
        for number, text in enumerate(TEXTS):
            frames[f"e{number}"] = [
                {"state": np.array([number, i], "<f4"), "task": text} for i in (0, 1)
            ]
            with writer.episode(f"e{number}") as episode:
                for frame in frames[f"e{number}"]:
                    episode.append(frame)
    features = {"task_embedding": {"shape": (None, 2)}}
    place = root / "dictionaries" / "task_embedding"
    with seqrecord.SeqRecordWriter(place, codecs="raw", features=features) as writer:
        for text in TEXTS:
            value = np.arange(2 * len(text), dtype=np.float32).reshape(-1, 2)
            values[text] = describe({"value": value})["value"]
            metadata = {TEXT: text, FEATURE: "task"}
            with writer.episode(key_of_text(text), metadata=metadata) as episode:
                episode.append({"task_embedding": as_words("task_embedding", value)})
    (root / "manifest.json").unlink()
    shutil.rmtree(root / "index")
    seqrecord.reindex(root)  # which finds the dictionary
    with seqrecord.open(root) as dataset:
        content = {
            "features": [*map(str, dataset.features.values())],
            "episodes": [
                {"key": key, "metadata": {}, "frames": [*map(describe, frames[key])]}
                for key in dataset.episodes
            ],
            "dictionaries": {"task_embedding": values},
        }
    (folder / "texts.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(GOLDEN)
