"""Ratio and speed of the codec presets and of other chains on TartanAir frames, on one thread.

    python -m benchmarks.tartanair.codec_table FOLDER --data DATA [--to benchmarks/tartanair]

DATA has files in the V1 or V2 layout, original or generated. In each repeat a frame is encoded
`runs / 5` and decoded `runs` times and the fastest run counts, in CPU time of the thread, since
other work on the machine can only slow one down. GB are 10**9 bytes of raw frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.timing import Result, Results, markdown
from seqrecord.store.codecs.chain import FrameCodec, resolve
from seqrecord.store.codecs.presets import PRESETS
from seqrecord.store.schema import CodecConfig

__all__ = [
    "CHAINS",
    "cell",
    "copied",
    "features_of",
    "figures",
    "layouts_of",
    "main",
    "page",
    "read_frames",
]

Frame = npt.NDArray[Any]
Frames = Mapping[str, Sequence[Frame]]
Chain = tuple[CodecConfig, ...]

COPY = "memcpy of 4 MiB"
"""The row of a copy, the limit of `raw`."""

_GREEN: CodecConfig = {"id": "seqrecord.subtract_green"}
_BIAS: CodecConfig = {"id": "seqrecord.bias"}
_ZSTD: CodecConfig = {"id": "zstd", "level": 1}


def _delta(axis: int | None, **parameters: int) -> CodecConfig:
    return {"id": "seqrecord.delta", "axis": axis, **parameters}


def _blosc(cname: str, level: int, shuffle: int, **parameters: int) -> CodecConfig:
    blosc = {"cname": cname, "clevel": level, "shuffle": shuffle, "blocksize": 1 << 20}
    return {"id": "blosc", **blosc, **parameters}


_PLANES, _BITS = _blosc("lz4hc", 5, 1), _blosc("lz4hc", 5, 2, typesize=2)
_ROWS, _FLOW_ROWS = _delta(-3, restart=16), _delta(-3, restart=16, width=8)
_FLOW = _delta(None, width=8)

CHAINS: Mapping[str, Mapping[str, Chain]] = {
    "all": {
        "zstd 1 alone": (_ZSTD,),
        "Blosc lz4, byte planes": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},),
    },
    "image": {
        "delta y, bit planes": (_ROWS, _BITS),
        "delta y, bit planes of single bytes": (_ROWS, _blosc("lz4hc", 5, 2)),
        "delta y, Blosc lz4hc": (_ROWS, _blosc("lz4hc", 5, 0)),
        "Blosc lz4hc": (_blosc("lz4hc", 5, 0),),
        "subtract green, delta y, bit planes": (_GREEN, _ROWS, _BITS),
        "subtract green, delta y without restart, zstd 1": (_GREEN, _delta(-3), _ZSTD),
    },
    "flow": {
        "delta y, delta, bias, planes": (_FLOW_ROWS, _FLOW, _BIAS, _PLANES),
        "delta y, delta, planes": (_FLOW_ROWS, _FLOW, _PLANES),
        "delta y, planes": (_FLOW_ROWS, _PLANES),
        "delta, planes": (_FLOW, _PLANES),
        "planes": (_PLANES,),
        "delta y, delta, bias, planes with zstd 3": (
            *(_FLOW_ROWS, _FLOW, _BIAS),
            _blosc("zstd", 3, 1),
        ),
    },
    "depth": {
        "planes": (_PLANES,),
        "delta, bias, planes": (_delta(None), _BIAS, _PLANES),
    },
}
"""Chains by feature, beside the presets; the first one of a feature is that of `balanced`."""


def read_frames(root: Path) -> dict[str, dict[str, list[Frame]]]:
    """Every image, depth, flow and mask below `root`, by layout and feature."""
    layouts: dict[str, dict[str, list[Frame]]] = {"V1": {}, "V2": {}}
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


def jobs_of(layouts: Mapping[str, Frames], runs: int) -> dict[str, Run]:
    """The rows: `LAYOUT/FEATURE/CODEC`, and a copy of memory."""
    jobs: dict[str, Run] = {COPY: partial(measure_copy, runs)}
    for layout, frames in layouts.items():
        for feature, samples in frames.items():
            dtype, shape = samples[0].dtype, samples[0].shape
            chains = {name: resolve(name, dtype, shape, feature=feature) for name in PRESETS}
            chains |= {**CHAINS["all"], **CHAINS.get(feature, {})}
            for name, chain in chains.items():
                jobs[f"{layout}/{feature}/{name}"] = partial(measure, chain, samples, runs)
    return jobs


def measure_copy(runs: int) -> Result:
    """Bytes and seconds of a copy between two arrays of 4 MiB."""
    source = np.ones(1 << 22, np.uint8)
    target = np.empty_like(source)
    return {"bytes": source.nbytes, "decode": fastest(lambda: np.copyto(target, source), runs)}


def measure(chain: Chain, frames: Sequence[Frame], runs: int) -> Result:
    """Bytes of the frames, raw and encoded, and seconds to encode and to decode them.

    Checks that decoding restores them bit for bit.
    """
    sums = {"bytes": 0.0, "encoded": 0.0, "encode": 0.0, "decode": 0.0}
    for frame in frames:
        codec = FrameCodec(chain, frame.dtype, frame.shape)
        blob, out = codec.encode(frame), np.empty_like(frame)
        codec.decode_into(blob, out)
        if out.tobytes() != frame.tobytes():
            raise AssertionError("a frame changed")
        sums["bytes"] += frame.nbytes / len(frames)
        sums["encoded"] += len(blob) / len(frames)
        seconds = fastest(partial(codec.encode, frame), max(3, runs // 5))
        sums["encode"] += seconds / len(frames)
        sums["decode"] += fastest(partial(codec.decode_into, blob, out), runs) / len(frames)
    return sums


def fastest(run: Callable[[], object], runs: int) -> float:
    """Seconds of CPU time of the fastest run."""
    times = []
    for _ in range(runs):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


# ---- the page


def figures(rows: Results, layout: str, codec: str, features: Sequence[str] = ()) -> Result:
    """The medians of a codec's rows, added over features of a layout, by default all."""
    chosen = features or features_of(rows, layout)
    runs = [rows[f"{layout}/{feature}/{codec}"] for feature in chosen]
    keys = ("bytes", "encoded", "encode", "decode")
    return {key: sum(median(run[key] for run in row) for row in runs) for key in keys}


def features_of(rows: Results, layout: str) -> list[str]:
    """The features of a layout."""
    features = {row.split("/")[1] for row in rows if row.startswith(f"{layout}/")}
    return sorted(features, key=("image", "depth", "flow", "mask", "seg").index)


def layouts_of(rows: Results) -> list[str]:
    """The layouts, in the order of the rows."""
    return [*dict.fromkeys(row.split("/")[0] for row in rows if row != COPY)]


def cell(sums: Result) -> str:
    """Times smaller / encode MB/s / decode GB/s."""
    size = sums["bytes"]
    ratio = size / sums["encoded"]
    digits = 0 if ratio > 99 else 2
    encode, decode = size / sums["encode"] / 1e6, size / sums["decode"] / 1e9
    return f"{ratio:,.{digits}f} / {encode:,.0f} / {decode:.2f}"


def presets_of(rows: Results, layout: str) -> str:
    """The table of a layout: presets and codecs of all features."""
    features = features_of(rows, layout)
    lines = [
        [
            codec,
            *(cell(figures(rows, layout, codec, [feature])) for feature in features),
            f"**{cell(figures(rows, layout, codec))}**",
        ]
        for codec in (*PRESETS, *CHAINS["all"])
    ]
    return markdown(["codec", *features, "all"], lines)


def chains_of(rows: Results, feature: str) -> str:
    """The table of a feature: its chains, in each layout that has it."""
    layouts = [layout for layout in layouts_of(rows) if feature in features_of(rows, layout)]
    lines = [
        [chain, *(cell(figures(rows, layout, chain, [feature])) for layout in layouts)]
        for chain in CHAINS[feature]
    ]
    return markdown([feature, *layouts], lines)


def copied(rows: Results) -> float:
    """GB/s of the copy."""
    rates: list[float] = [run["bytes"] / run["decode"] / 1e9 for run in rows[COPY]]
    return median(rates)


def spread_of(rows: Results) -> float:
    """The greatest quotient of a repeat's time to decode and the median of its row, less 1."""
    spreads = []
    for runs in rows.values():
        times: list[float] = [run["decode"] for run in runs]
        spreads.append(max(times) / median(times) - 1)
    return max(spreads)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    rows: Results = document["rows"]
    facts = {"machine": document["machine"], **document["settings"]}
    tables = [f"### {layout} frames\n\n{presets_of(rows, layout)}" for layout in layouts_of(rows)]
    chains = [chains_of(rows, feature) for feature in CHAINS if feature != "all"]
    template = Path(__file__).with_name("codec_template.md").read_text()
    return template.format(
        commit=document["commit"],
        shown=", ".join(f"{name} {value}" for name, value in facts.items()),
        repeats=document["repeats"],
        runs=document["settings"]["runs"],
        copy=f"{copied(rows):.0f}",
        spread=f"{spread_of(rows):.0%}",
        presets="\n\n".join(tables),
        chains="\n\n".join(chains),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="files of TartanAir")
    parser.add_argument("--runs", type=int, default=13, help="of which the fastest counts")
    options = parser.parse_args(arguments)
    versions = {"NumPy": np.__version__, "numcodecs": numcodecs.__version__}
    settings = {"runs": options.runs, **versions}
    suite = Suite(options, settings, "codecs", code=code_of("tartanair/CODECS.md"))
    if not options.report:
        jobs = jobs_of(read_frames(options.data), options.runs)
        suite.take_turns(suite.wanted(jobs))
    suite.publish(page, "CODECS")


if __name__ == "__main__":
    main()
