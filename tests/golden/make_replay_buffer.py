"""Writes tests/golden/replay_buffer.zarr.zip like ReplayBuffer.save_to_path, by zarr 2.18.7.

Needs `pip install 'zarr==2.18.7'`; the tests read the file by zarr 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_name("replay_buffer.zarr.zip")
ENDS = (3, 4, 9)


def arrays() -> dict[str, npt.NDArray[Any]]:
    """Arrays of the group `data`."""
    return {
        "action": (np.arange(18).reshape(9, 2) / 8).astype("<f4"),
        "img": (np.arange(9 * 4 * 4 * 3) % 251).reshape(9, 4, 4, 3).astype("u1"),
    }


def main() -> None:
    import numcodecs
    import zarr

    with zarr.ZipStore(str(FILE), mode="w") as store:  # type: ignore[attr-defined, unused-ignore]
        root = zarr.group(store)
        meta, data = root.create_group("meta"), root.create_group("data")
        meta.array("episode_ends", np.array(ENDS), chunks=(3,), compressor=None)
        blosc = numcodecs.Blosc("zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
        for name, array in arrays().items():
            data.array(name, array, chunks=(4, *array.shape[1:]), compressor=blosc)


if __name__ == "__main__":
    main()
