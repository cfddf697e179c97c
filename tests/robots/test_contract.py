"""The plug-in for `lerobot-train`, tested without lerobot on its recorded contract."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import shutil
import sys
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import seqrecord
from seqrecord import StateError
from seqrecord.lerobot import LeRobotDataset, PlannedSampler
from seqrecord.robots.lerobot.mix_meta import MixMeta, open_mix
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.robots.train_stand_in import DATASET, Training, options_of

PLUGIN = Path(__file__).parents[2] / "integrations" / "lerobot"
RECORDED = json.loads((PLUGIN / "lerobot_policy_seqrecord" / "contract.json").read_text())
SCRIPT = "lerobot.scripts.lerobot_train"


PARTS = ("dataset", "order", "mix")
CALLS = {name: calls for part in PARTS for name, calls in RECORDED[part]["call"].items()}
FACTORY = ["LeRobotDataset", "LeRobotDatasetMetadata", "make_dataset", "make_train_eval_datasets"]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a copy of the plug-in, whose contract a test may change."""
    folder = tmp_path / "plugin"
    shutil.copytree(PLUGIN, folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("SEQRECORD_LEROBOT", raising=False)
    yield folder / "lerobot_policy_seqrecord"
    for name in [name for name in sys.modules if name.startswith("lerobot_policy_seqrecord")]:
        del sys.modules[name]


@pytest.fixture
def installed(plugin: Path) -> Any:
    """The function that runs when LeRobot imports the plug-in."""
    del plugin
    return importlib.import_module("lerobot_policy_seqrecord.training").installed


@pytest.fixture
def lerobot(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimpleNamespace]:
    """Modules with the contract's definitions, calls and attributes, whose hashes it gets."""
    signatures = {
        name: text for part in PARTS for name, text in RECORDED[part]["signature"].items()
    }
    uses = [f"dataset.{name}" for name in RECORDED["dataset"]["attribute"]]
    uses += [f"sampler.{name}" for name in RECORDED["order"]["attribute"]]
    for name, defined in (
        ("lerobot.datasets.factory", FACTORY),
        (SCRIPT, [name for name in signatures if name not in FACTORY]),
    ):
        calls = FACTORY[:3] if defined is FACTORY else [FACTORY[3], *defined]
        body = [call for one in calls for call in CALLS[one]]
        body += [] if defined is FACTORY else uses
        lines = [f"def {one}{signatures[one]}: ..." for one in defined]
        lines += ["def train():", *(f"    {use}" for use in body), "    ..."]
        if name == SCRIPT:
            lines.append(f"from lerobot.datasets.factory import {FACTORY[3]}")
        path = (tmp_path / name.replace(".", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    info = tmp_path / "lerobot-0.9.dist-info"  # another version
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lerobot\nVersion: 0.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lerobot/datasets/lerobot_dataset.py").write_text(
        "from tests.kit.lerobot_stand_in import Metadata as LeRobotDatasetMetadata\n"
    )
    reader = tmp_path / "lerobot/datasets/dataset_reader.py"
    reader.write_text("class DatasetReader:\n    def get_item(self, idx):\n        return idx\n")
    factory = importlib.import_module("lerobot.datasets.factory")
    training = importlib.import_module(SCRIPT)
    found = importlib.import_module("lerobot_policy_seqrecord.contract").described(
        factory, training
    )
    recorded = {**RECORDED}
    for part in PARTS:
        recorded[part] = {**RECORDED[part], "source": found[part]["source"]}
    (plugin / "contract.json").write_text(json.dumps(recorded))
    files = {"factory": factory.__file__, "script": training.__file__, "reader": reader}
    yield SimpleNamespace(
        factory=factory,
        training=training,
        files={name: Path(str(file)) for name, file in files.items()},
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


def test_nothing_changes_in_other_commands(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    assert not installed()
    assert "lerobot" not in sys.modules


def test_nothing_changes_without_a_valid_variable(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(vars(lerobot.factory)), dict(vars(lerobot.training))
    assert not installed()
    monkeypatch.setenv("SEQRECORD_LEROBOT", "yes")
    with pytest.raises(SystemExit, match="is 'yes': expected 1, class or 0"):
        installed()
    assert (vars(lerobot.factory), vars(lerobot.training)) == before


MODES = {
    "class": {"SEQRECORD_LEROBOT": "class"},
    "1": {"SEQRECORD_LEROBOT": "1"},
    "mix": {"SEQRECORD_LEROBOT": "1", "SEQRECORD_LEROBOT_MIX": "mix.yaml"},
}
DIFFERENCES = [
    ("script", "", "def submit_to_hf(cfg, job): id", "signature of submit_to_hf: .cfg, job", "all"),
    ("script", "", "def save_checkpoint(at): id", "signature of save_checkpoint: .at", "1 mix"),
    ("factory", "", "def make_dataset(cfg, x): id", "signature of make_dataset: .cfg, x", "mix"),
    ("factory", "", "LeRobotDataset(0)", "got: call of LeRobotDataset: LeRobotDataset.0", "all"),
    ("script", "", "LeRobotDataset = id\nLeRobotDataset(0)", "", ""),  # not the replaced one
    ("script", "", "def f(): EpisodeAwareSampler([])", "call of EpisodeAwareSampler", "1 mix"),
    ("factory", "LeRobotDatasetMetadata(cfg.", "load(cfg.", "got: nothing else", "mix"),
    ("script", "", "def f(): dataset.rewind", "got: attribute of the dataset: rewind", "all"),
    ("script", "", "def f(): sampler.rewind", "got: attribute of the order: rewind", "1 mix"),
    ("script", "train():", "train():\n    print()", "got: source of train: [0-9a-f]{16}$", "1 mix"),
    ("factory", "make_dataset(cfg): ...", "make_dataset(cfg): id", "source of make_dataset", "mix"),
    ("script", "", "submit_to_hf = 3", "got: signature of submit_to_hf: of type int", "all"),
    ("reader", "return idx", "return idx + 1", "got: source of DatasetReader: [0-9a-f]{16}", "all"),
    ("reader", "DatasetReader", "Reader", "got: source of DatasetReader: None", "all"),
    ("reader", "return idx", "'Docs.'\n        return (idx)  # why", "", ""),
]  # fmt: skip
"""File, text (at its end if empty), its replacement, message, modes that are refused."""


@pytest.mark.parametrize(("file", "old", "new", "message", "refused"), DIFFERENCES)
def test_differences_in_what_a_mode_replaces_are_refused(
    lerobot: Any,
    installed: Any,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    old: str,
    new: str,
    message: str,
    refused: str,
) -> None:
    """Another version is no difference: that of the stand-in is not the recorded one."""
    path = lerobot.files[file]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new) if old else f"{text}{new}\n")
    for mode, variables in MODES.items():
        importlib.reload(lerobot.factory)
        importlib.reload(lerobot.training)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if refused == "all" or mode in refused.split():
            with pytest.raises(SystemExit, match=f"lerobot 0.9 differs .*{message}"):
                installed()
            assert lerobot.factory.LeRobotDataset is not LeRobotDataset
        else:
            assert installed()


def test_a_training_command_without_the_known_module_is_refused(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise LeRobot would read, although the variable is set."""
    monkeypatch.setattr(sys, "argv", ["/bin/lerobot-train", "--steps=1"])
    assert not installed()
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    with pytest.raises(SystemExit, match=f"this lerobot-train is not the module {SCRIPT}"):
        installed()


def test_other_errors_end_the_training(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LeRobot logs an error of a plug-in, and would read by itself."""
    lerobot.files["script"].unlink()
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    with pytest.raises(SystemExit, match="SEQRECORD_LEROBOT=1: "):
        installed()


def test_the_plug_in_requires_the_version_of_its_contract() -> None:
    """Which is also the one that `make test-lerobot` installs."""
    requirement = f"lerobot[dataset]=={RECORDED['version']}"
    assert f'dependencies = ["{requirement}", ' in (PLUGIN / "pyproject.toml").read_text()
    makefile = (PLUGIN.parents[1] / "Makefile").read_text()
    assert f"LEROBOT_RELEASE ?= =={RECORDED['version']}\n" in makefile


@pytest.mark.parametrize("wanted", ["1", "class"])
def test_the_variable_selects_the_replaced_classes(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("SEQRECORD_LEROBOT", wanted)
    theirs = lerobot.training.EpisodeAwareSampler
    assert installed()
    assert lerobot.factory.LeRobotDataset is LeRobotDataset
    assert (lerobot.training.EpisodeAwareSampler is theirs) == (wanted == "class")


def test_the_sampler_gets_batch_size_workers_and_ranks(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    made = LeRobotDataset("a/test", unpack(tmp_path, "lerobot_video_v3"))
    monkeypatch.setattr(lerobot.training, "make_train_eval_datasets", lambda cfg: (made, None))
    assert installed()
    cfg = SimpleNamespace(batch_size=2, num_workers=2, resume=False, **options_of())
    assert lerobot.training.make_train_eval_datasets(cfg) == (made, None)
    sampler = lerobot.training.EpisodeAwareSampler(
        [0], [9], seed=3, drop_n_last_frames=1, shuffle=True
    )
    options: Any = {"batch_size": 2, "num_workers": 2, "seed": 3, "drop_last_frames": 1}
    assert list(sampler) == list(PlannedSampler(made, **options, num_replicas=1))
    assert len(sampler) == 16 - 3


SLOW_NUMBERS = [(2, 3, 1), (2, 2, 2), (4, 1, 1)]


@pytest.mark.parametrize(
    "numbers",
    [(4, 3, 2), (2, 2, 1), *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW_NUMBERS)],
    ids=str,
)
def test_a_training_resumes_its_order_with_other_workers_and_ranks(
    lerobot: Any,
    installed: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    numbers: tuple[int, int, int],
) -> None:
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    made = LeRobotDataset("a/test", unpack(tmp_path, "lerobot_video_v3"))
    training = Training(lerobot, made, monkeypatch)
    assert installed()
    whole = training.run(None, 0, 22, 2, 2, 1)
    assert len({*whole[:16]}) == len(made) == 16
    found = training.run(tmp_path, 0, 3, 2, 2, 1)
    found += training.run(tmp_path, 3, 4, *numbers)
    assert ("--num_workers=2 and 1 processes" in caplog.text) == (numbers != (2, 2, 1))
    found += training.run(tmp_path, 4, 14, 2, 2, 1)  # resumed once more
    found += training.run(tmp_path, 14, 18, 2, 2, 1)  # inside a later epoch
    assert found == whole[: len(found)]
    assert len(found) > len(made)


@pytest.mark.parametrize("wanted", ["1", "class"])
def test_checkpoints_of_another_order_are_refused(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str
) -> None:
    training = Training(lerobot, None, monkeypatch)
    monkeypatch.setenv("SEQRECORD_LEROBOT", wanted)
    assert installed()
    file, other = tmp_path / "seqrecord_order.json", {"1": "class", "class": "1"}[wanted]
    if wanted == "class":
        file.write_text("{}")
    with pytest.raises(
        SystemExit, match=f"another order; resume it with SEQRECORD_LEROBOT={other}"
    ):
        training.run(tmp_path, 3, 4, 2, 2, 1)
    for junk in ("", "[]", '{"batch_size": -1}', '{"batch_size": 1}') if wanted == "1" else ():
        file.write_text(junk)
        with pytest.raises(StateError, match="not the order of a training"):
            training.run(tmp_path, 1, 2, 2, 2, 1)


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lerobot: Any) -> Path:
    """A mix file of two datasets, and a stand-in for LeRobot's `make_dataset`."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    unpack(tmp_path, "lerobot_video_v3")
    (tmp_path / "lerobot_video_v3").rename(tmp_path / "one")
    unpack(tmp_path, "lerobot_video_v3").rename(tmp_path / "two")
    path = tmp_path / "mix.yaml"
    path.write_text("sources: {one: {location: one, weight: 2}, two: {location: two, weight: 1}}")
    monkeypatch.setenv("SEQRECORD_LEROBOT_MIX", str(path))
    [text] = CALLS["LeRobotDatasetMetadata"]

    def make_dataset(cfg: Any) -> Any:
        cfg.tolerance_s, names = 1e-4, {**vars(lerobot.factory), "cfg": cfg}
        meta = eval(text, names)
        times = {"observation.state": [0.0, 1 / meta.fps]}
        names |= {"delta_timestamps": times, "image_transforms": None}
        [whole] = (c for c in CALLS["LeRobotDataset"] if "cfg.dataset.episodes" in c)
        return eval(whole, names)

    monkeypatch.setattr(lerobot.factory, "make_dataset", make_dataset)
    return path


def test_a_training_on_a_mix(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mix: Path
) -> None:
    training = Training(lerobot, None, monkeypatch)
    assert installed()
    whole = training.run(None, 0, 20, 3, 2, 1)
    windows = {"observation.state": [0, 1]}
    robots = seqrecord.SeqRecordMix.from_file(
        mix, windows=windows, pad="edge", batch_size=3, seed=3
    )
    firsts, episodes, order = {"one": 0, "two": 16}, [0, 5, 9], []
    for batch in islice(robots, 5):
        places = zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True)
        order += [firsts[name] + episodes[int(key[-1])] + start for name, key, start in places]
    assert training.run(None, 0, 5, 3, 0, 1) == order
    for count, is_set in ((0, False), (4, True)):  # LeRobot sets ImageNet's
        stats = MixMeta.of(open_mix(mix), "robots", image_frames=count).theirs.stats
        assert [bool(stats[name]) for name in CAMERAS] == [is_set] * 2
    found = training.run(tmp_path, 0, 3, 3, 2, 1)
    found += training.run(tmp_path, 3, 5, 3, 1, 1)  # with other workers
    found += training.run(tmp_path, 5, 20, 3, 2, 1)
    assert found == whole
    mix.write_text(mix.read_text().replace("weight: 2", "weight: 3"))
    with pytest.raises(StateError, match="the checkpoint is of another mix"):
        training.run(tmp_path, 3, 5, 3, 2, 1)


@pytest.mark.parametrize(
    ("change", "variables", "text"),
    [
        ("", {"SEQRECORD_LEROBOT": "class"}, "for seqrecord's order: expected SEQRECORD_LEROBOT=1"),
        ("", {"SEQRECORD_LEROBOT": "0"}, "got '0'"),
        ("", {"SEQRECORD_LEROBOT_MIX": "none.yaml"}, "none.yaml: the mix file cannot be read"),
        ("\nweights: wrong", {}, "weights"),
        ("\nvectors: {normalize: mean_std}", {}, "of one robot.*SEQRECORD_LEROBOT_DEPLOY"),
        ("\nvectors: {normalize: quantiles}", {"SEQRECORD_LEROBOT_DEPLOY": "no"}, "no such source"),
    ],
)  # fmt: skip
def test_mistakes_in_settings_of_a_training_on_a_mix(
    lerobot: Any,
    installed: Any,
    monkeypatch: pytest.MonkeyPatch,
    mix: Path,
    change: str,
    variables: dict[str, str],
    text: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    mix.write_text(mix.read_text() + change)
    training = Training(lerobot, None, monkeypatch)
    with pytest.raises(SystemExit, match=text):
        assert installed() and training.run(None, 0, 1, 2, 0, 1)  # noqa: PT018 - either may end it


GIVEN: dict[str, dict[str, Any]] = {
    "dataset.repo_type": {"repo_type": "bucket"},
    "dataset.root": {"root": "lerobot/"},
    "dataset.revision": {"revision": "v3.0"},
    "dataset.video_backend": {},
    "dataset.streaming": {"streaming": True},
    "sample_weighting.type=rabc": {},
    "job.target": {},
}
"""Options that do not work in all modes: values of `cfg.dataset`."""


def test_options_have_the_documented_effects(
    installed: Any, lerobot: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/from-lerobot.md has the table of the plug-in, and `check_options` follows it."""
    del installed, lerobot
    options = importlib.import_module("lerobot_policy_seqrecord.options")
    text = (PLUGIN.parents[1] / "docs/from-lerobot.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `--")]
    shown = {
        name.strip("`-"): tuple(effects) for cell, *effects in rows for name in cell.split("`, `")
    }
    assert shown == options.OPTIONS
    monkeypatch.setattr(sys, "argv", ["lerobot-train", ""])
    for name, effects in options.OPTIONS.items():
        partial = [effect for effect in effects if effect in (options.IGNORED, options.REFUSED)]
        assert bool(partial) == (name in GIVEN), name
    for (name, dataset), mode in product(GIVEN.items(), options.MODES):
        cfg = SimpleNamespace(**options_of(**dataset))
        if name.startswith("sample_weighting"):
            cfg.sample_weighting = SimpleNamespace(type="rabc")
        cfg.job.is_remote = name == "job.target"
        sys.argv[1] = f"--{name}=torchcodec" if name.endswith("backend") else ""
        effect = options.OPTIONS[name][options.MODES.index(mode)]
        caplog.clear()
        if effect == options.REFUSED:
            with pytest.raises(seqrecord.ClipError, match=f"--{name} does not go with seqrecord"):
                options.check_options(cfg, mode)
            continue
        options.check_options(cfg, mode)
        assert (f"--{name} is ignored" in caplog.text) == (effect == options.IGNORED), (name, mode)


def test_refused_options_end_the_training(
    lerobot: Any, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a training by LeRobot's reader, and of a job elsewhere."""
    monkeypatch.setenv("SEQRECORD_LEROBOT", "1")
    training = Training(lerobot, None, monkeypatch)
    assert installed()
    monkeypatch.setitem(DATASET, "streaming", True)
    with pytest.raises(SystemExit, match=r"SEQRECORD_LEROBOT=1: --dataset\.streaming does"):
        training.run(None, 0, 1, 2, 0, 1)
    cfg = SimpleNamespace(**options_of(streaming=False))
    cfg.job.is_remote = True
    with pytest.raises(SystemExit, match=r"--job\.target does not go with seqrecord"):
        lerobot.training.submit_to_hf(cfg)


def test_our_class_has_the_contracts_signature_and_attributes() -> None:
    for text in CALLS["LeRobotDataset"]:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        names = {word.arg: word for word in call.keywords if word.arg}
        inspect.signature(LeRobotDataset).bind(*call.args, **names)
    source = inspect.getsource(LeRobotDataset)
    optional = {"repo_id_to_index"}  # in unreached code
    for name in set(RECORDED["dataset"]["attribute"]) - optional:
        assert hasattr(LeRobotDataset, name) or f"self.{name} =" in source, name
