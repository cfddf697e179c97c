"""Every codec of the closed list has a text in docs/codecs.md and a golden dataset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seqrecord.store.areas import NAMED_CODECS
from seqrecord.store.codecs.chain import CODEC_IDS
from seqrecord.store.codecs.images import FORMATS, IMAGE

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/v1"
NORMATIVE = (ROOT / "docs/codecs.md").read_text().partition("\n## Chains\n")[2]


def golden_configs() -> list[dict[str, Any]]:
    """Configurations of all codecs in the manifests of golden datasets."""
    manifests = [json.loads(path.read_text()) for path in GOLDEN.glob("*/manifest.json")]
    return [
        config
        for manifest in manifests
        for feature in manifest["schema"]
        for config in feature["codec"]
    ]


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_codec_has_a_normative_text(codec: str) -> None:
    assert re.search(rf'`{re.escape(codec)}`|"id": "{re.escape(codec)}"', NORMATIVE)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_codec_is_in_a_golden_dataset(codec: str) -> None:
    """`test_golden` decodes all of them."""
    assert codec in {config["id"] for config in golden_configs()}


@pytest.mark.parametrize(
    ("codec", "key", "names"), [(IMAGE, "format", FORMATS), ("video", "codec", NAMED_CODECS)]
)
def test_formats_have_texts_and_golden_datasets(codec: str, key: str, names: Any) -> None:
    used = {config.get(key) for config in golden_configs() if config["id"] == codec}
    described = {*re.findall(r"`\"?([\w]+)\"?`|\"(\w+)\"", NORMATIVE)}
    assert {*names} - {name for pair in described for name in pair} == set()
    assert {*names} - used == set()
