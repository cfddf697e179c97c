"""Value kinds: a kind is one object, and another kind is entries in tables."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import SeqRecordPipe
from seqrecord.cuda import buffers as device_buffers
from seqrecord.errors import CodecError, FrameError
from seqrecord.export import to_files
from seqrecord.loader.engine.arena import FORMS, ObjectForm
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.value_kinds import VALUE_KINDS, Objects
from tests.kit.datasets import columns, write_dataset

SHAPES: dict[str, list[tuple[int | None, ...]]] = {
    "array": [(3, 4), (None, 3)],
    "text": [(None,)],
    "bytes": [(None,)],
}


class Entries(Objects):
    """Dicts of JSON."""

    value: ClassVar[Any] = "json"
    types = (dict,)

    def nbytes_of(self, value: Any) -> int:
        return len(json.dumps(value))

    def stored_array(self, feature: str, item: Any) -> npt.NDArray[np.uint8]:
        if not isinstance(item, dict):
            raise FrameError("not a dict", feature=feature, got=type(item).__name__)
        return np.frombuffer(json.dumps(item).encode(), np.uint8)

    def user_value(self, array: npt.NDArray[Any]) -> Any:
        try:
            return json.loads(array.tobytes() or b"{}")
        except ValueError as error:
            raise CodecError("not JSON") from error


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Entries:
    """A fourth kind of values, registered as a package would do it."""
    kind = Entries()
    monkeypatch.setitem(cast("dict[str, Any]", VALUE_KINDS), "json", (kind, kind))
    monkeypatch.setitem(cast("dict[Any, Any]", FORMS), kind, ObjectForm())
    lists = cast("dict[Any, Any]", device_buffers.LISTS)
    monkeypatch.setitem(lists, kind, lists[VALUE_KINDS["bytes"][True]])
    return kind


@pytest.mark.parametrize("value", VALUE_KINDS)
def test_a_kind_is_one_object(value: Any) -> None:
    for shape in SHAPES[value]:
        spec = FeatureSpec("x", np.dtype(np.uint8), shape, value=value)
        assert copy.deepcopy(spec).value_kind is spec.value_kind
        assert pickle.loads(pickle.dumps(spec)).value_kind is spec.value_kind


def test_every_kind_has_forms() -> None:
    kinds = {kind for pair in VALUE_KINDS.values() for kind in pair}
    assert FORMS.keys() == kinds
    stacked = {kind for kind in kinds if FORMS[kind].is_stacked}
    assert device_buffers.LISTS.keys() == kinds - stacked


def write(path: Path, events: Sequence[Any]) -> None:
    numbers = np.arange(len(events), dtype=np.float32)[:, None]
    write_dataset(path, {"e": columns(x=numbers, event=events)})


@pytest.mark.usefixtures("entries")
def test_another_kind_is_written_read_and_streamed(tmp_path: Path) -> None:
    write(tmp_path / "r", [{"number": number} for number in range(8)])
    with seqrecord.open(tmp_path / "r") as dataset:
        assert str(dataset.features["event"]) == "event: json"
        assert dataset.episodes["e"][3]["event"] == {"number": 3}
        assert [*dataset.statistics] == ["x"]
    for device in (None, "cpu"):
        batches = SeqRecordPipe(
            tmp_path / "r", clip_len=2, batch_size=3, shuffle=False, device=device
        )
        for batch in batches:
            numbers = [[entry["number"] for entry in clip] for clip in batch["event"]]
            assert numbers == batch["x"][..., 0].int().tolist()
        assert "event: json" in str(batches)


@pytest.mark.usefixtures("entries")
def test_another_kind_is_exported_as_its_bytes(tmp_path: Path) -> None:
    write(tmp_path / "r", [{"number": number} for number in range(3)])
    [folder] = to_files(tmp_path / "r", None, tmp_path / "files", features=["event"])
    texts = [file.read_text() for file in sorted(folder.rglob("*.bin"))]
    assert texts == [f'{{"number": {number}}}' for number in range(3)]


@pytest.mark.usefixtures("entries")
def test_another_kind_refuses_values_of_wrong_types(tmp_path: Path) -> None:
    write(tmp_path / "r", [{"number": 0}])
    with pytest.raises(FrameError, match="not a dict"):
        write(tmp_path / "s", [{"number": 0}, "text"])
