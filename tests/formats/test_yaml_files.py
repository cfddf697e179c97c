"""YAML files of originals: values of YAML 1.2, tags of OpenCV, budgets of aliases and levels."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from seqrecord import open_source
from seqrecord.errors import SourceError
from tests.kit.datasets import encoded

CAMERA: dict[str, Any] = {
    "sensor_type": "camera",
    "T_BS": {"cols": 4, "rows": 4, "data": [1.0, 0, 0, 0.07, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]},
    "rate_hz": 20,
    "resolution": [32, 24],
    "camera_model": "pinhole",
    "intrinsics": [30.0, 30.5, 16.0, 12.0],
    "distortion_model": "radial-tangential",
    "distortion_coefficients": [-0.28, 0.07, 0.0002, 2e-05],
}
FLOW = yaml.safe_dump(CAMERA, default_flow_style=None)
BLOCK = yaml.safe_dump(CAMERA, default_flow_style=False)
POSE = "T_BS: [[1, 0, 0, 0.07], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]\n"
WITHOUT_POSE = yaml.safe_dump({k: v for k, v in CAMERA.items() if k != "T_BS"})
SAME = {
    "flow": FLOW,
    "block": BLOCK,
    "both": WITHOUT_POSE + yaml.safe_dump({"T_BS": CAMERA["T_BS"]}, default_flow_style=False),
    "rows of a matrix": WITHOUT_POSE + POSE,
    "OpenCV": "%YAML:1.0\n---\n" + FLOW.replace("T_BS:", "T_BS: !!opencv-matrix"),
    "OpenCV, without ---": "%YAML:1.0\n" + BLOCK,
    "YAML 1.2": "%YAML 1.2\n---\n" + BLOCK,
    "floats of YAML 1.2": BLOCK.replace("2.0e-05", "2e-5").replace("- 0.0002", "- +2e-4"),
    "aliases": BLOCK.replace("- 30.0\n", "- &f 30.0\n").replace("rate_hz: 20", "rate_hz: 2e1"),
    "comments": "# camera\n" + FLOW.replace("rate_hz: 20", "rate_hz: 20 # of: all"),
    "carriage returns": FLOW.replace("\n", "\r\n"),
    "below a name": "cam0:\n" + "".join(f"  {line}\n" for line in FLOW.splitlines()),
    "a byte order mark": "\ufeff" + FLOW,
}
BAD = {
    "cut in a list": (FLOW[: FLOW.index("2.0e-05")], "invalid YAML in line"),
    "cut before the last number": (BLOCK[: BLOCK.index("- 30.5")] + "]", "invalid YAML in line"),
    "text": ("a camera\n", "not a description"),
    "twelve numbers": (WITHOUT_POSE + "T_BS: {data: [1, 2, 3]}\n", "invalid T_BS"),
    "a missing number": (FLOW.replace("2.0e-05]", "]").replace("rate_hz: 20", "rate_hz:"), "rate"),
    "a word": (FLOW.replace("30.5", "x"), "invalid intrinsics"),
    "not a number": (FLOW.replace("30.5", ".nan"), "invalid intrinsics"),
    "one key twice": (FLOW + "rate_hz: 30\n", "twice"),
    "two documents": (FLOW + "---\na: 1\n", "a second document"),
    "a tab": (FLOW + "a:\n\t- 1\n", "invalid YAML in line"),
}


def write_sequence(root: Path, text: str) -> None:
    camera = root / "mav0" / "cam0"
    (camera / "data").mkdir(parents=True)
    (camera / "data" / "1.png").write_bytes(encoded(np.zeros((24, 32), np.uint8)))
    (camera / "data.csv").write_text("#timestamp [ns],filename\n1,1.png\n")
    (camera / "sensor.yaml").write_bytes(text.encode())


@pytest.mark.parametrize("case", SAME)
def test_descriptions_of_one_camera(tmp_path: Path, case: str) -> None:
    write_sequence(tmp_path / "a", SAME[case])
    [info] = open_source(tmp_path).episodes()
    [camera] = info.metadata["cameras"].values()
    expected = {**CAMERA, "T_BS": np.reshape(CAMERA["T_BS"]["data"], (4, 4)).tolist()}
    assert camera == expected
    assert info.fps == 20
    assert info.metadata["camera"]["image_cam0"]["fy"] == 30.5


@pytest.mark.parametrize("case", BAD)
def test_other_descriptions_of_a_camera(tmp_path: Path, case: str) -> None:
    text, match = BAD[case]
    write_sequence(tmp_path / "a", text)
    with pytest.raises(SourceError, match=match) as caught:
        open_source(tmp_path).episodes()
    assert caught.value.file == str(tmp_path / "a" / "mav0" / "cam0" / "sensor.yaml")


def bomb(levels: int) -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for number in range(levels):
        old, new = chr(97 + number), chr(98 + number)
        lines.append(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]")
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases": bomb(20),
    "a recursive alias": "a: &a [*a]\n",
    "levels": "a: " + "[" * 100_000,
    "levels of blocks": "".join(f"{' ' * n}a:\n" for n in range(700)),
    "values": "a: [" + "[]," * 300_000 + "]",
    "keys": "".join(f"k{n}:\n" for n in range(80_000)) + "a: [" + "1," * 200_000 + "]",
}


SLOW = ("values", "keys")


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in BOMBS]
)
def test_budget_of_a_small_file(tmp_path: Path, case: str) -> None:
    write_sequence(tmp_path / "a", BOMBS[case])
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match="invalid YAML"):
        open_source(tmp_path).episodes()
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
