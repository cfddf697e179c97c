"""RLDS: the dataset that TensorFlow Datasets wrote."""

from __future__ import annotations

from pathlib import Path

from tests.formats.cases import Case, Episodes
from tests.formats.rlds_data import SPLITS, episodes
from tests.kit.lerobot_video_data import unpack


def _golden(folder: Path) -> Episodes:
    unpack(folder.parent, "rlds").rename(folder)
    found = Episodes()
    for split in SPLITS:
        for number, episode in enumerate(episodes(split)):
            rows = found[f"{split}/{number:06d}"] = []
            for step in episode["steps"]:
                row = {**step, **{f"observation.{n}": v for n, v in step["observation"].items()}}
                del row["observation"]
                rows.append(row | {"observation.depth": row["observation.depth"][..., 0]})
    return found


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)


CASES = {
    "rlds": Case(
        source="RldsSource",
        write=_golden,
        bad="train/000000",
        file="arm-train.tfrecord-00000-of-00001",
        damage=_flipped,
        kept={"observation.image": "jpeg", "observation.wrist": "png"},
        close={"observation.image": 3},  # JPEG
        inventory="""
format    rlds: features.json with steps, 1 shard of train, 1 shard of val
feature   action  float64 [2]  action  from *.tfrecord-*, feature steps/action
feature   count  int64 []  from *.tfrecord-*, feature steps/count
feature   is_first  bool []  from *.tfrecord-*, feature steps/is_first
feature   is_last  bool []  from *.tfrecord-*, feature steps/is_last
feature   language_instruction  text []  text  from *.tfrecord-*, feature steps/language_instruction
feature   observation.depth  uint16 [6, 8]  depth  from *.tfrecord-*, feature steps/observation/depth
feature   observation.image  uint8 [16, 24, 3]  image  from *.tfrecord-*, feature steps/observation/image
feature   observation.state  float32 [3]  state  from *.tfrecord-*, feature steps/observation/state
feature   observation.tactile  int16 [2, 4]  from *.tfrecord-*, feature steps/observation/tactile
feature   observation.wrist  uint8 [6, 8, 3]  image  from *.tfrecord-*, feature steps/observation/wrist
feature   reward  float32 []  from *.tfrecord-*, feature steps/reward
""",  # noqa: E501
    )
}
