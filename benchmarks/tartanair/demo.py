"""`make demo`: render, pack, verify, stream, draw. Everything goes through the public commands."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

import seqrecord

CLIP_LEN = 16
BATCH_SIZE = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where everything goes; emptied first")
    parser.add_argument("--frames", type=int, default=48, help="per episode")
    parser.add_argument("--episodes", type=int, default=3)
    arguments = parser.parse_args()
    run(arguments.folder, arguments.frames, arguments.episodes)


def run(folder: Path, frames: int, episodes: int) -> None:
    """The whole demo in `folder`, which is emptied first."""
    tree, records, picture = folder / "tartanair", folder / "tartanair-records", folder / "clip.png"
    shutil.rmtree(folder, ignore_errors=True)
    rows: list[tuple[str, str]] = []

    step("Render a TartanAir tree")
    python("benchmarks.tartanair.generate", tree, "--frames", frames, "--episodes", episodes)
    tree_bytes = size(tree)
    rows.append(("rendered", f"{episodes} episodes of {frames} frames, {mib(tree_bytes)} of files"))

    step("Pack it into record files")
    begin = time.perf_counter()
    command("write", "--src", tree, "--dst", records)
    seconds = time.perf_counter() - begin
    dataset = seqrecord.open(records)
    raw = dataset.num_frames * dataset.features.frame_nbytes
    stored = size(records)
    rows.append(("raw frames", mib(raw)))
    rows.append(("packed", f"{mib(stored)}, {raw / stored:.1f} times smaller, in {seconds:.1f} s"))

    step("Verify every checksum and every page")
    command("verify", records, "--deep")
    rows.append(("verified", "no problem found"))

    step(f"Stream an epoch of shuffled clips of {CLIP_LEN}")
    rows += stream(records)

    step("Draw a clip")
    command("view", records, "--clip-len", CLIP_LEN, "-o", picture)
    rows.append(("drawn", str(picture)))

    print()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name.ljust(width)}  {value}")


def stream(records: Path) -> list[tuple[str, str]]:
    """One shuffled epoch, as a training loop takes it."""
    begin = time.perf_counter()
    pipe = seqrecord.SeqRecordPipe(records, clip_len=CLIP_LEN, batch_size=BATCH_SIZE, seed=0)
    first = None
    with tqdm(total=pipe.num_clips, unit="clip") as bar:
        for batch in pipe:
            first = first or time.perf_counter() - begin
            bar.update(len(batch["episode"]))
    seconds = time.perf_counter() - begin
    stats = pipe.stats()
    touched = stats["clips"] * CLIP_LEN
    return [
        ("streamed", f"{stats['clips']} clips in {seconds:.1f} s, the first after {first:.2f} s"),
        ("frames in clips", f"{touched}, of which {stats['frames_decoded']} were decoded"),
        ("bytes read", mib(stats["bytes_read"])),
        ("bottleneck", stats["bottleneck"]),
    ]


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def command(*arguments: object) -> None:
    python("seqrecord", *arguments)


def python(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


if __name__ == "__main__":
    main()
