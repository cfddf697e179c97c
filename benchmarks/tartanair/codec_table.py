"""Print ratio and speed of each codec preset on TartanAir frames, on one thread.

    python -m benchmarks.tartanair.codec_table DATA [--repeats N]

DATA has files in the V1 or V2 layout, original or generated. Every frame is encoded and decoded
`repeats` times and the fastest run counts, in CPU time of the thread, since other work on the
machine can only slow one down. A memcpy is timed the same way for comparison. GB are 10**9
bytes of raw frames. Total weighs the features by their bytes in a frame.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
from PIL import Image

from seqrecord.store.codecs.chain import FrameCodec, resolve
from seqrecord.store.codecs.presets import PRESETS
from seqrecord.store.schema import CodecConfig

Frames = dict[str, list[npt.NDArray[Any]]]
Row = npt.NDArray[np.float64]

REFERENCES: dict[str, tuple[CodecConfig, ...]] = {
    "zstd 1 alone": ({"id": "zstd", "level": 1},),
    "Blosc lz4, byte planes": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},),
}


def read_frames(root: Path) -> dict[str, Frames]:
    """Every image, depth, flow and mask below `root`, by layout and feature."""
    layouts: dict[str, Frames] = {"V1": {}, "V2": {}}
    for path in sorted(root.rglob("*.*")):
        kind = path.parent.name
        if path.name.startswith("._"):
            continue
        if path.suffix == ".npy" and kind in ("depth_left", "flow", "seg_left"):
            name = "mask" if path.stem.endswith("_mask") else kind.removesuffix("_left")
            layouts["V1"].setdefault(name, []).append(np.load(path))
        elif path.suffix == ".png" and kind == "image_left":
            layouts["V1"].setdefault("image", []).append(np.asarray(Image.open(path)))
        elif path.suffix == ".png" and kind == "image_lcam_front":
            layouts["V2"].setdefault("image", []).append(np.asarray(Image.open(path)))
        elif path.suffix == ".png" and kind == "depth_lcam_front":
            depth = np.ascontiguousarray(Image.open(path)).view("<f4")[..., 0]
            layouts["V2"].setdefault("depth", []).append(depth)
    return {layout: frames for layout, frames in layouts.items() if frames}


def fastest(run: Callable[[], object], repeats: int) -> float:
    """Seconds of CPU time of the fastest of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


def measure(codec: FrameCodec, frame: npt.NDArray[Any], repeats: int) -> Row:
    """Bytes of a frame, raw and encoded, and seconds to encode and to decode it.

    Checks that decoding restores it bit for bit.
    """
    blob = codec.encode(frame)
    out = np.empty_like(frame)
    codec.decode_into(blob, out)
    if out.tobytes() != frame.tobytes():
        raise AssertionError("a frame changed")
    encode = fastest(lambda: codec.encode(frame), max(3, repeats // 5))
    decode = fastest(lambda: codec.decode_into(blob, out), repeats)
    return np.array([frame.nbytes, len(blob), encode, decode])


def print_table(layout: str, frames: Frames, repeats: int) -> None:
    print(f"\n{layout} frames\n")
    print("| codec | feature | times smaller | encode MB/s | decode GB/s |")
    print("|---|---|---:|---:|---:|")
    for codec in (*PRESETS, *REFERENCES):
        total = np.zeros(4)
        for feature, samples in frames.items():
            mean = np.zeros(4)
            for frame in samples:
                chain = (
                    resolve(codec, frame.dtype, frame.shape, feature=feature)
                    if codec in PRESETS
                    else REFERENCES[codec]
                )
                mean += measure(FrameCodec(chain, frame.dtype, frame.shape), frame, repeats)
            mean /= len(samples)
            total += mean
            print_row(codec, feature, mean)
        print_row(f"**{codec}**", "**all**", total)


def print_row(codec: str, feature: str, row: Row) -> None:
    raw, encoded, encode, decode = row
    print(
        f"| {codec} | {feature} | {raw / encoded:.2f} | {raw / encode / 1e6:.0f} "
        f"| {raw / decode / 1e9:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args()
    source = np.ones(1 << 22, np.uint8)
    target = np.empty_like(source)
    memcpy = source.nbytes / fastest(lambda: np.copyto(target, source), options.repeats) / 1e9
    print(
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"numcodecs {numcodecs.__version__}; one thread, CPU time, fastest of {options.repeats}; "
        f"memcpy of 4 MiB {memcpy:.0f} GB/s"
    )
    for layout, frames in read_frames(options.data).items():
        print_table(layout, frames, options.repeats)


if __name__ == "__main__":
    main()
