"""Mix files: the same batches as in Python, errors with their place, and `seqrecord info`."""

from __future__ import annotations

import inspect
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import seqrecord
from seqrecord import CenterCrop, SeqRecordIterableDataset, SeqRecordMix, Vector, samples
from seqrecord.errors import SeqRecordError
from seqrecord.loader.sampling.built_ins import BUILT_INS
from seqrecord.recipes.values import python_value
from tests.kit.clip_data import digests, no_leaks
from tests.kit.command_line import fail, run
from tests.kit.datasets import write_dataset
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.loader.mix_data import write_source

FPS = {"slow": 10, "fast": 24}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix_file")
    write_source(folder / "a", 0, (23, 9, 30))
    write_source(folder / "b", 1, (12, 15), extra=("pose",))
    write_source(folder / "sub" / "c", 2, (14, 9), side=9)
    for name, fps in FPS.items():
        with (
            seqrecord.SeqRecordWriter(folder / name) as writer,
            writer.episode("e", fps=fps) as episode,
        ):
            for i in range(40):
                episode.append({"action": np.array([i, fps], "f4")})
    nested = "sources: {c: {location: c, splits: {train: e/0, val: e/1}}}\nresize: [6, 8]\n"
    (folder / "sub" / "inner.yaml").write_text(nested)
    return folder


def load(root: Path, text: str, **options: Any) -> SeqRecordMix:
    path = root / "mix.yaml"
    path.write_text(text)
    return SeqRecordMix.from_file(path, **options)


def stream(root: Path, name: str, **options: Any) -> SeqRecordIterableDataset:
    return SeqRecordIterableDataset(root / name, **options)


WHOLE = """
sources:
  a: {location: a, weight: 3, splits: {train: "e/[01]", val: [2]}}
  b:
    location: ./b/
    weight: 2
    rename: {pose: state}
    splits: {train: [0, 1], val: []}
    engine: {num_cursors: 2}
  inner: {mix: sub/inner.yaml, weight: 0.5}
windows:
  image: {start: 0, stop: 4, step: 2}
  state: [0]
batch_size: 6
seed: 5
"""


def whole(root: Path, split: str, **options: Any) -> SeqRecordMix:
    windows: dict[str, Any] = {"image": range(0, 4, 2)}
    of_inner = {"train": "e/0", "val": "e/1"}[split]
    inner = stream(root / "sub", "c", windows=windows, resize=(6, 8), episodes=of_inner)
    rows: Any = {"train": "e/[01]", "val": [2]}[split]
    sources: dict[str, Any] = {"a": stream(root, "a", windows=windows, episodes=rows)}
    if split == "train":
        engine, rename = seqrecord.EngineOptions(num_cursors=2), {"pose": "state"}
        more = {**windows, "state": [0]}
        sources["b"] = stream(root, "b", windows=more, rename=rename, engine=engine)
    sources["inner"] = SeqRecordMix({"c": inner}, batch_size=1)
    weights = {"a": 3, "b": 2, "inner": 0.5}
    weights = {name: weights[name] for name in sources}
    return SeqRecordMix(sources, **{"weights": weights, "batch_size": 6, "seed": 5, **options})


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_same_batches_as_in_python(root: Path, split: str) -> None:
    assert digests(load(root, f"{WHOLE}split: {split}")) == digests(whole(root, split))
    again = load(root, WHOLE, split=split)
    assert digests(pickle.loads(pickle.dumps(again))) == digests(whole(root, split))
    more: dict[str, Any] = {"weights": "equal", "batch_size": 3, "device": "cpu"}
    assert digests(load(root, WHOLE, split=split, **more)) == digests(whole(root, split, **more))


def test_windows_in_steps_of_the_source_or_the_nearest_frame(root: Path) -> None:
    """Offsets count each source's own steps; 0.2 s is frame 2 at 10 fps, and 4.8 at 24."""
    sources = "sources: {slow: {location: slow}, fast: {location: fast}}\nbatch_size: 8\n"
    for windows, steps in (
        ("{action: [0, 2]}", {10: 2, 24: 2}),
        ("{action: {seconds: [0, 0.2], tolerance: 0.021}}", {10: 2, 24: 5}),
    ):
        for batch in load(root, f"{sources}windows: {windows}"):
            for first, later in batch["action"]:
                assert later[0] - first[0] == steps[int(first[1])]
    text = f"{sources}windows: {{action: {{seconds: [0, 0.2], tolerance: 0.001}}}}"
    with pytest.raises(SeqRecordError, match=r"source 'fast'.*0.2 s, with the nearest.*0.208"):
        load(root, text)


@pytest.mark.usefixtures("home")
def test_sources_with_companions(root: Path) -> None:
    rows_of = {"e/0": 12, "e/1": 15}.items()
    latents = {key: [{"latent": np.full(2, i, "f4")} for i in range(n)] for key, n in rows_of}
    write_dataset(root / "latents", latents)
    rows = {"episode": ["e/0"] * 12, "frame": range(12), "score": np.arange(12.0)}
    pq.write_table(pa.table(rows), root / "scores.parquet")
    text = """
sources:
  b:
    location: b
    join: [latents, scores.parquet]
    open: {missing: drop}
    features: [latent, score]
  a: {location: b, join: latents, features: [latent], rename: {latent: other}}
batch_size: 4
clip_len: 2
"""
    batches = [*load(root, text)]
    assert {*batches[0]} >= {"latent", "score", "other"}
    for batch in batches:
        of_b = ~batch["score_is_missing"] if "score_is_missing" in batch else batch["source"] == 0
        for row in of_b.nonzero().ravel().tolist():
            assert batch["score"][row].tolist() == batch["latent"][row][:, 0].tolist()
    with pytest.raises(SeqRecordError, match=r"join.*paths of datasets or tables"):
        load(root, "sources: {b: {location: b, join: 3}}\nbatch_size: 1\nclip_len: 1")
    with pytest.raises(SeqRecordError, match=r"source 'b'.*without a partner"):
        load(root, "sources: {b: {location: b, join: scores.parquet}}\nbatch_size: 1\nclip_len: 1")


VALUES: list[tuple[str, Any, Any]] = [
    ("windows", {"a": {"stop": 3}}, {"a": range(3)}),
    ("windows", {"a": {"start": 4, "stop": 0, "step": -2}}, {"a": range(4, 0, -2)}),
    ("windows", {"a": {"seconds": [0.5, 1]}}, {"a": seqrecord.Seconds([0.5, 1])}),
    (
        "windows",
        {"a": {"seconds": {"first": -1, "last": 0, "step": 0.5}, "timestamps": "t"}},
        {"a": seqrecord.Seconds(-1, 0, step=0.5, timestamps="t")},
    ),
    (
        "windows",
        {"a": [0, {"at": "goal", "within": [1, 9]}]},
        {"a": [0, seqrecord.At("goal", 0, (1, 9))]},
    ),
    ("windows", {"a": {"at": "goal", "offsets": [0, 2]}}, {"a": seqrecord.At("goal", [0, 2])}),
    ("windows", {"a": {"latest": None, "max_age": 3}}, {"a": seqrecord.Latest(max_age=3)}),
    ("windows", {"a": {"latest": {"stop": 2}}}, {"a": seqrecord.Latest(range(2))}),
    ("windows", {"a": {"next": None, "max_wait": 3}}, {"a": seqrecord.Next(max_wait=3)}),
    ("engine", {"num_threads": 2}, seqrecord.EngineOptions(num_threads=2)),
    ("clip_transform", {"CenterCrop": 4}, CenterCrop(4)),
    (
        "clip_transform",
        [{"RandomResizedCrop": {"size": [2, 3], "scale": [0.5, 1]}}, {"HorizontalFlip": 0.1}],
        [seqrecord.RandomResizedCrop((2, 3), (0.5, 1)), seqrecord.HorizontalFlip(0.1)],
    ),
    (
        "clip_transform",
        {"front": [{"CenterCrop": 4}], "wrist": {"CenterCrop": {"size": 3}}},
        {"front": [CenterCrop(4)], "wrist": CenterCrop(3)},
    ),
    (
        "clip_transform",
        [{"DepthToMeters": "d"}, {"DepthToMeters": {"features": ["d", "e"], "unit": "mm"}}],
        [seqrecord.DepthToMeters("d"), seqrecord.DepthToMeters("d", "e", unit="mm")],
    ),
    ("samples", {"dilate": [1, 2]}, samples.dilate(1, 2)),
    (
        "samples",
        ["few.parquet", {"dilate": {"dilations": [1, 4]}}, {"reverse": 0.5}, {"subset": {"of": 9}}],
        ["few.parquet", samples.dilate(1, 4), samples.reverse(0.5), samples.subset(of=9)],
    ),
    (
        "samples",
        [{"every": 4}, {"skip_first": 1}, {"skip_last": 2}, {"inside": "task"}],
        [samples.every(4), samples.skip_first(1), samples.skip_last(2), samples.inside("task")],
    ),
    ("samples", {"repeat_by": {"name": "a", "power": -1}}, samples.repeat_by("a", power=-1)),
    ("samples", [{"final_goal": "end"}], [samples.final_goal("end")]),
    ("samples", [{"future_goal": "geometric"}], [samples.future_goal("geometric")]),
    ("samples", [{"one_per_episode": None}], [samples.one_per_episode()]),
    ("vectors", {"normalize": "quantiles"}, Vector(normalize="quantiles")),
    ("frame_cache", {"folder": "f", "limit": "1GiB"}, seqrecord.FrameCache("f", "1GiB")),
    ("camera", {"inverse": True}, seqrecord.Camera(inverse=True)),
]


def test_values_of_keys() -> None:
    for key, value, expected in VALUES:
        assert repr(python_value(key, value)) == repr(expected)
        assert repr(python_value(key, expected)) == repr(expected)
    given = repr([value for key, value, _ in VALUES if key == "samples"])
    assert [name for name in BUILT_INS if f"'{name}'" not in given] == ["where"]  # not in files


def test_samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and functions by name, as in Python, and their preview."""
    table = {"episode": ["e/1", "e/0", "e/0"], "start": [3, 0, 12], "note": ["x", "y", "z"]}
    pq.write_table(pa.table(table), root / "few.parquet")
    monkeypatch.chdir(root.parent)
    text = """
sources:
  a: {location: a, samples: [few.parquet, {final_goal: end}]}
  b: {location: b, samples: {every: {n: 4, rotate: true}}}
clip_len: 2
batch_size: 3
stopping_strategy: all_exhausted
"""
    of_a = stream(root, "a", clip_len=2, samples=[table, samples.final_goal("end")])
    of_b = stream(root, "b", clip_len=2, samples=samples.every(4, rotate=True))
    both = {"a": of_a, "b": of_b}
    mix = SeqRecordMix(both, batch_size=3, stopping_strategy="all_exhausted")
    assert digests(load(root, text)) == digests(mix)
    shown = [one.split() for one in run("info", root / "mix.yaml", "--samples").stdout.split("\n")]
    i = shown.index(["a:", "3", "samples", "in", "epoch", "0"])
    assert shown[i + 1] == ["episode", "start", "note", "end"]
    assert shown[i + 2] == ["e/0", "0", "y", "22"]
    found = json.loads(run("info", root / "mix.yaml", "--samples", "--json").stdout)
    assert len(found["samples"]["b"]["start"]) == 5
    given = "{episode: [e/0, e/2], frames: [[3, 1], [2, 5]]}"
    value = json.loads(run("info", root / "a", "--json", "--samples", given).stdout)
    assert value == {"num_samples": 2, "first": {"episode": ["e/0", "e/2"], "start": [1, 2]}}
    scores = {"episode": ["e/0", "e/2"], "start": [1, 2], "score": [math.nan, math.inf]}
    pq.write_table(pa.table(scores), root / "scores.parquet")
    shown_text = run("info", root / "a", "--json", "--samples", root / "scores.parquet").stdout
    assert json.loads(shown_text, parse_constant=pytest.fail)["first"]["score"] == [None, None]
    assert "59 samples in epoch 0" in run("info", root / "a", "--clip-len", 2, "--samples").stdout
    assert "unknown key" in fail("info", root / "a", "--samples", "{evry: 2}")
    text = fail("info", root / "mix.yaml", "--samples", "{every: 2}", code=2)
    assert "--samples without a value" in text


def test_errors_show_ranges_as_in_the_file(root: Path) -> None:
    text = "sources: {a: {location: a}}\nwindows: {image: x}\nbatch_size: 4\n"
    with pytest.raises(SeqRecordError) as caught:
        load(root, text)
    assert "range(" not in str(caught.value)
    assert "{start: 0, stop: 16}" in str(caught.value)


def test_defaults_of_sources(root: Path) -> None:
    text = """
sources:
  a: {location: a}
  b: {location: b, rename: {pose: state}}
  own: {location: b, features: [pose]}
features: [image, state]
resize: [3, 4]
windows: {state: [-1, 0], pose: [2]}
batch_size: 4
"""
    mix = load(root, text)
    features = {item.name: item.sources for item in mix.summarize().features}
    assert features == {"image": ("a", "b"), "state": ("b",), "pose": ("own",)}
    batch = next(iter(mix))
    shapes = {name: [*batch[name].shape[1:]] for name in ("image", "state", "pose")}
    assert shapes == {"image": [1, 3, 4, 3], "state": [2, 3], "pose": [1, 3]}
    # `features` uses the new names of `rename`, in any order of the keys.
    text = "sources: {a: {location: a}, b: {location: b}}\nfeatures: [camera, state]\nclip_len: 2\n"
    mix = load(root, f"{text}rename: {{pose: state, image: camera}}\nbatch_size: 2")
    features = {item.name: item.sources for item in mix.summarize().features}
    assert features == {"camera": ("a", "b"), "state": ("b",)}
    text = """
sources:
  a: &a {location: a, clip_len: 3, episodes: ["e/0"]}
  b: {<<: *a, location: b, stride: 2}
batch_size: 4
memory_limit: 1GiB
"""
    same: dict[str, Any] = {"clip_len": 3, "episodes": ["e/0"]}
    sources = {"a": stream(root, "a", **same), "b": stream(root, "b", **same, stride=2)}
    assert digests(load(root, text)) == digests(SeqRecordMix(sources, batch_size=4))


@pytest.mark.usefixtures("home")
def test_defaults_that_name_values_of_texts(tmp_path: Path) -> None:
    def mean(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"mean": batch["where"].double().mean(dim=1)}

    def embedding(text: str) -> torch.Tensor:
        return torch.full((len(text), 2), 3.0)

    sources = "sources:\n"
    for number, name in enumerate("ab"):
        write_source(tmp_path / name, number, (8, 6), texts=True)
        options: dict[str, Any] = {"features": ["where"], "batch_size": 4}
        per_text = {"text": embedding}
        values = tmp_path / f"{name}-values"
        seqrecord.derive(tmp_path / name, mean, values, per_text=per_text, **options)
        sources += f"  {name}: {{location: {name}, join: {name}-values}}\n"
    text = f"{sources}clip_len: 2\nbatch_size: 3\n"
    options_text = "features: [text, text_embedding]\nragged: {text_embedding: pad}\n"
    assert {*next(iter(load(tmp_path, text + options_text)))} >= {"text", "text_embedding"}
    options_text = "rename: {text_embedding: language}\nragged: {language: pad}\n"
    assert {*next(iter(load(tmp_path, text + options_text)))} >= {"language", "language_mask"}


def test_vectors_of_several_robots(root: Path) -> None:
    text = """
sources:
  a: {location: a, vectors: {where: {place: [0, 1, 5]}}}
  b:
    location: b
    vectors:
      where: {place: [2, 1, 0]}
      pose: {place: [1, 2, 3], normalize: quantiles}
clip_len: 2
vectors: {where: {pad_to: 6, normalize: mean_std, statistics: source}}
camera_padding_masks: true
number_tasks: true
batch_size: 4
"""
    of_a = {"where": Vector(place=[0, 1, 5])}
    of_b = {"where": Vector([2, 1, 0]), "pose": Vector([1, 2, 3], normalize="quantiles")}
    sources = {
        "a": stream(root, "a", clip_len=2, vectors=of_a),
        "b": stream(root, "b", clip_len=2, vectors=of_b),
    }
    options: dict[str, Any] = {"vectors": {"where": Vector(pad_to=6, normalize="mean_std")}}
    options |= {"camera_padding_masks": True, "number_tasks": True}
    mix = load(root, text)
    assert digests(mix) == digests(SeqRecordMix(sources, batch_size=4, **options))
    summary = mix.summarize()
    a, b = summary.sources
    assert (a.placed, b.placed) == ({"where": (0, 1, 5)}, {"where": (2, 1, 0), "pose": (1, 2, 3)})
    assert ({*a.normalized}, {*b.normalized}) == ({"where"}, {"where", "pose"})
    assert summary.columns.keys() >= {"where_dim_is_pad", "image_padding_mask", "task_index"}
    assert "a: placed where at 0, 1, 5\n" in str(summary)
    assert summary.tasks == ("task 0", "task 1", "task 2")


A = "sources: {a: {location: a}}\nclip_len: 3\nbatch_size: 2\n"


FAULTY = [
    ("", "not a mapping"),
    ("sources: [", "line 1: invalid YAML"),
    ("a: 1\nb: 2\na: 3", "line 3: a key appears twice.*'a', first in line 1"),
    ("a: !!python/object/apply:os.getcwd []", "line 1: a tag is not allowed"),
    ("1: 2", "line 1: a key is not text.*quotes"),
    ("a: &a [*a]", "too many values"),
    (f"{'x' * (1 << 20)}: 2", "too large"),
    ("a: 1\n---\nb: 2", "line 2: invalid YAML"),
    ("sorces: {}", "line 1: the mix file has an unknown key.*expected: sources; got: 'sorces'"),
    ("batch_size: 2", "line 1: the mix file has no sources"),
    ("sources: {a: 3}", "line 1, source 'a': a source is not a mapping"),
    ("sources: {a: {weight: 3}}", "source 'a': the source has no location"),
    ("sources: {a: {location: 3}}", "line 1, source 'a': location is not a text"),
    ("sources:\n a: {path: a}", "line 2, source 'a': .*unknown key.*expected: camera, choose"),
    ("sources:\n a: {locaton: a}", "line 2, source 'a': .*unknown key.*expected: location"),
    (A.replace("a}", "a, batch_size: 2}"), "source 'a': batch_size is a key of the mix"),
    (A.replace("a}", "a, frame_transform: f}"), "frame_transform needs a function"),
    (A.replace("a}", "a, clips: {}}"), "source 'a'.*clips"),
    (A.replace(" a}", " nowhere}"), "mix.yaml, line 1, source 'a': no dataset here"),
    (A.replace(": 2", ": 0"), "line 3: batch_size is too small"),
    (A.replace("batch_size: 2", ""), "the mix has no batch_size.*from_file"),
    (A + "windows: {image: {strat: 0}}", "line 4: windows of image has an unknown key.*start"),
    (A + "windows: {image: {start: 0}}", "line 4: windows of image is not a range"),
    (A + "windows: {image: {seconds: [0], tolerence: 1}}", "unknown key.*expected: tolerance"),
    (
        A + "windows: {imagee: [0]}",
        "line 4, windows: no source.*expected: image; got: 'imagee",
    ),
    (A + "features: [imag]", "source 'a': the source has none of the mix's features.*'?imag"),
    (A + "features: [image, pose]", "line 4, features: no source of the mix"),
    (A + "rename: {imag: i}", "line 4, rename: no source of the mix has this feature"),
    (
        A + "clip_transform: [{Crop: 3}]",
        "line 4: clip_transform has an unknown.*RandomCrop",
    ),
    (A + "clip_transform: [3]", "clip_transform is not valid"),
    (
        A + "engine: {trace: mix.yaml}",
        r"line 4: trace is no key of a mix file.*EngineOptions\(trace",
    ),
    (A + "frame_cache: {folder: f}", "line 4: frame_cache lacks a value.*folder, limit"),
    (A + "engine: {threads: 3}", "line 4: engine has an unknown key.*num_threads"),
    (A + "engine: {num_threads: 1025}", "line 4: engine.num_threads is too large.*1024"),
    (
        A + f"stride: {10**40}",
        "line 4: stride has a number of too many digits.*got: 41",
    ),
    (A + f"windows: {{image: [{'0' * 41}.5]}}", "line 4: image has a number of too many digits"),
    (A + "seed: x", "line 4: seed is not an integer"),
    (A + "weights: size", "line 4: weights is not valid.*alpha"),
    (A.replace("a}", "a, weight: -1}"), "line 1, source 'a': weight is not valid"),
    (
        A.replace("a}", "a, weight: 1}") + "weights: equal",
        "weights is given for the mix, and",
    ),
    (A.replace("a}", "a, weight: 1}, b: {location: b}"), "source 'b' has no weight"),
    (A.replace("a}", "a, weight: 1, choose: 2}"), "repeat and choose .*exclude weights"),
    (A + "split: train", "source 'a': unknown split.*or splits: of the source"),
    (A.replace("a}", "a, splits: {train: [0]}}"), "splits without a chosen split.*of train"),
    (A.replace("a}", "a, splits: {train: [0]}}") + "split: trian", "lacks.*expected: train"),
    (
        A.replace("a}", "a, splits: {train: '*', val: [1]}}") + "split: val",
        "source 'a': splits share an episode; .*episode: e/1; .*got: train and val",
    ),
    (
        A.replace("a}", "a, splits: {v: []}}") + "split: v",
        "no source has episodes",
    ),
    (A.replace("a}", "a, splits: {v: [0]}, episodes: [1]}") + "split: v", "excludes splits"),
    (A.replace("a}", "a, open: {versoin: 1}}"), "open has an unknown key.*version"),
    (A.replace("location: a", "mix: mix.yaml"), "source 'a': mix files contain each other"),
    (A.replace("location: a", "mix: none.yaml"), "source 'a': the mix file cannot be read"),
    (A.replace("location: a", "mix: bad.yaml"), "bad.yaml.*line 1.*no sources|no sources"),
    (A.replace("location: a", "mix: pipe.yaml"), "source 'a': .*not a regular file.*pipe.yaml"),
    (
        A.replace("location: a", "mix: deep0.yaml"),
        "mix is nested too deep.*16 .*deep15.yaml",
    ),
    (A.replace("location: a", "mix: wide.yaml"), "line 1: sources are too many.*wide.yaml.*1,024"),
]


def test_faulty_files(root: Path) -> None:
    (root / "bad.yaml").write_text("batch_size: 3")
    os.mkfifo(root / "pipe.yaml")
    wide = {str(i): {"mix": "wide.yaml"} for i in range(1024)}
    (root / "wide.yaml").write_text(json.dumps({"sources": wide}))
    for i in range(25):  # two sources each: 2**25 in all
        two = {name: {"mix": f"deep{i + 1}.yaml"} for name in "ab"}
        (root / f"deep{i}.yaml").write_text(json.dumps({"sources": two}))
    for text, message in FAULTY:
        with pytest.raises(SeqRecordError, match=f"(?s){message}") as caught:
            load(root, text)
        assert ".yaml" in str(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)


def test_odd_values_of_every_key(root: Path, thorough: bool) -> None:
    """Each value loads or raises an error of this package."""
    of_mix = [name for name in inspect.signature(SeqRecordMix).parameters if name != "sources"]
    of_source = [*inspect.signature(SeqRecordIterableDataset).parameters]
    of_source += ["weight", "repeat", "choose", "location", "open", "splits"]
    values = [{"image": [None]}, {"image": {"seconds": {"first": 0, "last": "x"}}}, -3, [[1]]]
    for value in values if thorough else values[1:3]:
        for key in (*of_mix, *of_source):
            entry = {"location": "a", **({key: value} if key in of_source else {})}
            file = {"sources": {"a": entry}, "clip_len": 3, "batch_size": 2, "split": "train"}
            if "splits" not in entry:
                del file["split"]
            try:
                load(root, json.dumps({**file, **({} if key in of_source else {key: value})}))
            except SeqRecordError as error:
                assert "mix.yaml" in str(error), (key, value)  # noqa: PT017


def test_arguments_of_from_file(root: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"batchsize": 3}, "from_file: there is no such arg.*expected: batch_size"),
        ({"seed": "x"}, "argument of from_file: seed is not an integer"),
        ({"windows": {"image": "x"}}, "argument of from_file: a window is not.*mix.yaml"),
    ]
    for options, message in wrong:
        with pytest.raises(SeqRecordError, match=message):
            load(root, A, **options)
    with pytest.raises(SeqRecordError, match="a URL"):
        SeqRecordMix.from_file("s3://bucket/mix.yaml")
    windows = {"x": [0, 1, 2, 3]}  # of an array returned by the function
    for frames, options in ((3, {}), (4, {"windows": windows})):
        mix = load(root, A, frame_transform=lambda frame: {"x": frame["image"][0]}, **options)
        assert next(iter(mix))["x"].shape == (2, frames, 8, 3)
    with no_leaks(), pytest.raises(SeqRecordError, match="line 2, source 'z'"):
        load(root, "sources:\n z: {location: a, episodes: [99]}\nclip_len: 2\nbatch_size: 1")


def test_info(root: Path) -> None:
    path = root / "mix.yaml"
    path.write_text(WHOLE)
    text = run("info", path, "--split", "train").stdout
    table = [line.split() for line in text.splitlines()]
    assert ["a", str(root / "a"), "54.5%", "28", "2", "32"] in table
    assert ["state", "float32", "1", "x", "3", "b"] in table
    for change in (
        "a: missing state, 0 in batches",
        "b: renamed pose to state",
        "inner/c: resized image from 9 x 8",
    ):
        assert change in text
    value = json.loads(run("info", path, "--split", "train", "--json").stdout)
    assert [source["share"] for source in value["sources"]] == [6 / 11, 4 / 11, 1 / 11]
    features = {one["name"]: (one["dtype"], one["shape"]) for one in value["features"]}
    assert features["image"] == ("uint8", [2, 6, 8, 3])
    assert value["columns"]["state_is_missing"] == "bool"
    assert value["sources"][1]["renamed"] == {"state": "pose"}
    assert value["unused_sources"] == []
    assert (
        "b: unused, with weight 0 or without episodes" in run("info", path, "--split", "val").stdout
    )
    assert "splits without a chosen split" in fail("info", path)
    path.write_text("sources: {a: {location: a}}")
    assert "3 x 6 x 8 x 3" in run("info", path, "--clip-len", 3).stdout
    text = run("info", path).stdout
    assert "1 x 6 x 8 x 3" in text
    assert "the file has no batch_size: shown with 1" in text
    assert "a mix file takes only" in fail("info", path, "--episodes", code=2)
    assert "--split requires a mix file" in fail("info", root / "a", "--split", "x", code=2)
    sources = {"a": stream(root, "a", clip_len=2), "c": stream(root / "sub", "c", clip_len=2)}
    summary = SeqRecordMix(sources, batch_size=2).summarize()
    assert [(one.name, one.shape, one.sources) for one in summary.features] == [
        ("image", (2, 6, 8, 3), ("a",)),
        ("image", (2, 9, 8, 3), ("c",)),
        ("where", (2, 3), ("a", "c")),
    ]
    assert "2 clips of one source each" in str(summary)


def test_locations(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LeRobot dataset in place, a URL, and paths with `~`; the mix file is in another folder."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "index"))
    monkeypatch.setenv("HOME", str(root))
    original = unpack(tmp_path, "lerobot_v3")
    for name in CAMERAS:
        with_video(original, (5, 3, 7), name)
    text = f"""
sources:
  lerobot: {{location: ../lerobot_v3, features: [action]}}
  b:
    location: ~/b
    features: [pose, image]
    rename: {{pose: action}}
    frame_cache: {{folder: frames, limit: 1GiB}}
    resize: {{image: [3, 4]}}
  url: {{location: "file://{root}/b", features: [where], open: {{verify: false}}}}
clip_len: 2
batch_size: 4
"""
    (tmp_path / "mixes").mkdir()
    (tmp_path / "mixes" / "mix.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    mix = SeqRecordMix.from_file("mixes/mix.yaml")
    assert {source.location for source in mix.summarize().sources} >= {str(root / "b")}
    assert {*(name for batch in mix for name in batch["dataset"])} == {"lerobot", "b", "url"}
    assert any((tmp_path / "mixes/frames").iterdir())
