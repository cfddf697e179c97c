"""Joined datasets: compared with the same features stored together."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, edit
from seqrecord.companions.episode_identity import episode_identity
from seqrecord.errors import ClipError, FormatError, JoinError, SchemaError
from tests.kit.command_line import run
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.tiny import check_frames, merged_frames, read_all

Frames = dict[str, list[dict[str, Any]]]

LENGTHS = {"a": 14, "b": 9, "c": 1, "d": 23}


def source_frames() -> Frames:
    return {
        key: columns(
            image=noise(length, 4, 5, 3, seed=seed),
            step=np.arange(length, dtype="<i4") + 1000 * seed,
        )
        for seed, (key, length) in enumerate(LENGTHS.items())
    }


def latent_frames(gaps: Mapping[str, tuple[int, ...]] | None = None) -> Frames:
    """Latents, ragged boxes and texts; frames `gaps` of an episode lack latents."""
    frames: Frames = {}
    for seed, (key, length) in enumerate(LENGTHS.items()):
        latents: list[Any] = list(noise(length, 6, dtype="f4", seed=seed + 50))
        for number in (gaps or {}).get(key, ()):
            latents[number] = None
        boxes = [np.full(((i + 1) % 3, 4), i + seed, "<f4") for i in range(length)]
        texts = [f"{key} {i}" for i in range(length)]
        frames[key] = columns(latent=latents, boxes=boxes, text=texts)
    return frames


def write_derived(path: Path, source: Path, frames: Frames, **options: Any) -> None:
    """Write values of a dataset's episodes, with the identities of these."""
    if "boxes" in next(iter(frames.values()))[-1]:
        options["features"] = {"boxes": {"shape": (None, 4)}}
    with seqrecord.open(source) as dataset:
        identities = {
            key: {
                "a place of varying length": "x" * (3 * i),
                "derived_from": {**episode_identity(dataset, i), "function": "test"},
            }
            for i, key in enumerate(dataset.episodes)
        }
    write_dataset(path, frames, metadata=identities, **options)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset in chunks of four frames, and its companion in chunks of five."""
    source, latents = tmp_path / "source", tmp_path / "latents"
    write_dataset(source, source_frames(), chunk_frames=4)
    write_derived(latents, source, latent_frames({"b": (2, 3), "d": (0,)}), chunk_frames=5)
    return source, latents


def test_frames_equal_those_stored_together(places: tuple[Path, Path]) -> None:
    source, latents = places
    expected = merged_frames(source_frames(), latent_frames({"b": (2, 3), "d": (0,)}))
    check_frames(read_all(source, join=[latents]), expected)
    check_frames(read_all(source, join=latents), expected)
    with seqrecord.open(latents) as companion:
        check_frames(read_all(source, join=[companion]), expected)
    names = ["latent", "step"]
    some = {k: [{n: f[n] for n in names if n in f} for f in v] for k, v in expected.items()}
    check_frames(read_all(source, join=[latents], features=names), some)


def test_a_pickled_joined_dataset_is_equal(places: tuple[Path, Path]) -> None:
    source, latents = places
    with seqrecord.open(source, join=[latents]) as dataset:
        renamed = dataset.renamed({"latent": "z", "step": "latent"})
        for version in (dataset, dataset.select(["text", "image"]), renamed):
            copy = pickle.loads(pickle.dumps(version))
            assert copy.features == version.features
            assert copy.fingerprint == version.fingerprint
            for key, episode in version.episodes.items():
                for number in (0, len(episode) - 1):
                    frame, copied = episode[number], copy.episodes[key][number]
                    assert frame.keys() == copied.keys()
                    assert all(np.array_equal(frame[n], copied[n]) for n in frame)
            copy.close()


def cut(frames: Frames, key: str, start: int, stop: int) -> Frames:
    return {k: v[start:stop] if k == key else v for k, v in frames.items()}


@pytest.mark.parametrize("span", [(0, 9), (3, 14), (4, 8), (5, 7), (13, 14)])
def test_trimmed_episodes(places: tuple[Path, Path], span: tuple[int, int]) -> None:
    source, latents = places
    edit.trim_episodes(source, ["a"], slice(*span))
    latent = latent_frames({"b": (2, 3), "d": (0,)})
    expected = cut(merged_frames(source_frames(), latent), "a", *span)
    check_frames(read_all(source, join=[latents]), expected)
    edit.merge_datasets([source], source.with_name("copy"))
    if span != (5, 7) and span != (13, 14):  # without a whole chunk
        check_frames(read_all(source.with_name("copy"), join=[latents]), expected)


def test_frames_that_the_companion_lacks_are_gaps(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, latents = places
    version = edit.list_versions(source)[0].id
    edit.trim_episodes(source, ["d"], slice(5, 19))
    write_derived(latents.with_name("short"), source, cut(latent_frames(), "d", 5, 19))
    edit.restore_version(source, version)
    expected = merged_frames(source_frames(), latent_frames())
    for number in (*range(5), *range(19, 23)):
        expected["d"][number] = source_frames()["d"][number]
    with caplog.at_level(logging.WARNING):
        frames = read_all(source, join=[latents.with_name("short")])
    check_frames(frames, expected)
    [warning] = [r.getMessage() for r in caplog.records if "joined" in r.getMessage()]
    assert warning.endswith("9 frames of other episodes without values")


def test_missing_partners(places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    source, latents = places
    edit.delete_episodes(latents, ["b", "c"])
    with pytest.raises(JoinError) as error:
        seqrecord.open(source, join=[latents])
    assert error.value.episode == "b, c"
    assert (error.value.expected, error.value.got) == ("partners of 4 episodes", 2)
    expected = merged_frames(source_frames(), latent_frames({"d": (0,)}))
    with caplog.at_level(logging.WARNING):
        dropped = read_all(source, join=[latents], missing="drop")
    check_frames(dropped, {key: expected[key] for key in "ad"})
    assert "2 episodes of 4 without a partner: left out" in caplog.text
    padded = read_all(source, join=[latents], missing="pad")
    check_frames(padded, expected | {key: source_frames()[key] for key in "bc"})
    with pytest.raises(seqrecord.ClipError, match="unknown missing"):
        seqrecord.open(source, join=[latents], missing="ignore")  # type: ignore[arg-type]


def test_companions_without_identities_join_by_key_and_length(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, latents = places
    plain = latents.with_name("plain")
    boxes = {"boxes": {"shape": (None, 4)}}
    write_dataset(plain, dict(reversed(latent_frames().items())), features=boxes)
    with caplog.at_level(logging.WARNING):
        frames = read_all(source, join=[plain])
    check_frames(frames, merged_frames(source_frames(), latent_frames()))
    assert "joined to" in caplog.text
    assert "by key and length alone (it stores no identities" in caplog.text
    assert "4 of 4 episodes, for example a, b, c" in caplog.text
    edit.trim_episodes(source, ["d"], slice(5, 19))
    with pytest.raises(JoinError) as error:
        seqrecord.open(source, join=[plain])
    assert (error.value.episode, error.value.got) == ("d", 23)


def test_changed_sources_are_refused(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, latents = places
    edit.add_feature(source, "step", lambda episode: [np.int32(7)] * len(episode), overwrite=True)
    with pytest.raises(JoinError) as error:
        seqrecord.open(source, join=[latents])
    assert (error.value.episode, error.value.got) == ("a, b, c", "feature step has changed")
    with caplog.at_level(logging.WARNING):  # found by uid
        frames = read_all(source, join=[latents], check="lengths", features=["latent"])
    assert not caplog.records
    latent = latent_frames({"b": (2, 3), "d": (0,)})
    expected = {k: [{n: f[n] for n in f if n == "latent"} for f in v] for k, v in latent.items()}
    check_frames(frames, expected)


def test_few_episodes_of_many_without_identities_join_by_key(tmp_path: Path) -> None:
    """No identity is searched for in the text of a companion that stores none."""
    keys = [f"n{i:03}" for i in range(300)]
    write_dataset(tmp_path / "few", {key: columns(x=[1.0]) for key in keys[-9:]})
    write_dataset(tmp_path / "many", {key: columns(y=[i]) for i, key in enumerate(keys)})
    joined = read_all(tmp_path / "few", join=[tmp_path / "many"])
    assert {key: frame["y"] for key, [frame] in joined.items()} == {
        key: int(key[1:]) for key in keys[-9:]
    }


def write_renumbered(path: Path, contents: list[int], *, is_lossy: bool, length: int = 9) -> None:
    """Episodes of one length with the keys 0, 1, …, of these recordings."""
    change = np.uint8(1 if is_lossy else 0)
    write_dataset(
        path,
        {
            f"{number}": columns(image=noise(length, 4, 5, 3, seed=content) ^ change)
            for number, content in enumerate(contents)
        },
    )


def write_recordings(path: Path, source: Path, count: int, length: int = 9) -> None:
    """The number of the recording of each frame, derived from `source`."""
    frames = {f"{number}": columns(recording=[number] * length) for number in range(count)}
    write_derived(path, source, frames)


@pytest.mark.parametrize("is_lossy", [True, False])
def test_renumbered_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_lossy: bool
) -> None:
    """As LeRobot does after a deletion: pages prove which they are, unless encoded again."""
    before, after, recordings = tmp_path / "before", tmp_path / "after", tmp_path / "recordings"
    write_renumbered(before, [0, 1, 2, 3], is_lossy=False)
    write_recordings(recordings, before, 4)
    write_renumbered(after, [0, 2, 3], is_lossy=is_lossy)
    if is_lossy:
        with pytest.raises(JoinError) as error:
            seqrecord.open(after, join=[recordings])
        assert error.value.episode == "0, 1, 2"
        assert "lengths" not in error.value.message
        with pytest.raises(JoinError, match="no episode of a companion has the frames"):
            seqrecord.open(recordings, join=[after], missing="drop")
    with caplog.at_level(logging.WARNING):
        joined = read_all(after, join=[recordings], check="lengths")
    found = [int(joined[key][0]["recording"]) for key in "012"]
    if is_lossy:
        assert "by key and length alone (check='lengths'" in caplog.text
        assert "3 of 3 episodes, for example 0, 1, 2" in caplog.text
    else:
        assert found == [0, 2, 3]
        assert not caplog.records


def test_lengths_are_named_to_who_compares_them(tmp_path: Path) -> None:
    write_renumbered(tmp_path / "before", [0, 1], is_lossy=False)
    write_recordings(tmp_path / "recordings", tmp_path / "before", 2)
    write_renumbered(tmp_path / "after", [0, 1], is_lossy=True, length=8)
    with pytest.raises(JoinError) as error:
        seqrecord.open(tmp_path / "after", join=[tmp_path / "recordings"], check="lengths")
    assert error.value.got == "8 frames, and 9 of the companion"
    assert "lengths" not in error.value.message


def test_other_frames_under_the_same_key_are_refused(places: tuple[Path, Path]) -> None:
    source, latents = places
    edit.delete_episodes(source, ["b"])
    with SeqRecordWriter(source, mode="append") as writer, writer.episode("b") as episode:
        for frame in columns(image=noise(9, 4, 5, 3, seed=99), step=np.arange(9, dtype="<i4")):
            episode.append(frame)
    with pytest.raises(JoinError) as error:
        seqrecord.open(source, join=[latents])
    assert (error.value.episode, error.value.got) == ("b", "other frames of image, step")


def test_renamed_and_merged_sources(places: tuple[Path, Path]) -> None:
    source, latents = places
    edit.rename_episodes(source, {"a": "b", "b": "a"})
    expected = merged_frames(source_frames(), latent_frames({"b": (2, 3), "d": (0,)}))
    expected = {{"a": "b", "b": "a"}.get(key, key): frames for key, frames in expected.items()}
    check_frames(read_all(source, join=[latents]), expected)
    both = source.with_name("both")
    edit.merge_datasets([source, source], both, prefixes=["x/", "y/"])
    merged = {f"{prefix}/{key}": frames for prefix in "xy" for key, frames in expected.items()}
    found = read_all(both, join=[latents])
    check_frames({key: found[key] for key in merged}, merged)


def test_two_companions(places: tuple[Path, Path], tmp_path: Path) -> None:
    source, latents = places
    returns = {k: columns(ret=np.arange(n, dtype="f4")) for k, n in LENGTHS.items()}
    write_derived(tmp_path / "returns", source, returns)
    expected = merged_frames(source_frames(), latent_frames({"b": (2, 3), "d": (0,)}), returns)
    joined = read_all(source, join=[latents, tmp_path / "returns"])
    check_frames(joined, expected)
    with seqrecord.open(source, join=[latents]) as inner:  # a joined dataset is a dataset
        check_frames(read_all(tmp_path / "returns", join=[inner]), merged_frames(returns, expected))


def test_duplicate_names_are_refused(places: tuple[Path, Path]) -> None:
    source, latents = places
    with pytest.raises(SchemaError) as error:
        seqrecord.open(source, join=[latents, latents])
    assert error.value.feature == "latent"
    parts = [seqrecord.open(latents, features=[name]) for name in ("latent", "text")]
    with seqrecord.open(source, join=parts) as dataset:
        assert list(dataset.features) == ["image", "step", "latent", "text"]
        assert dataset.episodes["b"][4]["text"] == "b 4"


def test_names_of_features_that_are_not_selected(tmp_path: Path) -> None:
    """They may be those of others, whose values and statistics are then the dataset's."""
    values = {"base": np.arange(8.0), "companion": 100 + np.arange(8.0)}
    for name, own in (("base", "image"), ("companion", "latent")):
        frames = columns(**{own: np.arange(8.0), "action": values[name]})
        write_dataset(tmp_path / name, {"a": frames})
        seqrecord.add_statistics(tmp_path / name)
    base, companion = tmp_path / "base", tmp_path / "companion"
    with pytest.raises(SchemaError, match="features of one name"):
        seqrecord.open(base, join=[companion])
    with pytest.raises(SchemaError, match="features of one name") as error:
        seqrecord.open(base, join=[companion], features=["image", "action", "latent"])
    assert error.value.feature == "action"
    latent = seqrecord.open(companion, features=["latent"])
    for names in (None, ["action", "latent"]):
        with seqrecord.open(base, join=[latent], features=names) as joined:
            mine = values["base"]
            assert np.asarray(joined.episodes["a"][:]["action"]).tolist() == mine.tolist()
            assert joined.statistics["action"].mean == pytest.approx(mine.mean())
            assert {*joined.statistics} >= {*joined.features}


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: {"key": "b"},
        lambda entry: {**entry, "pages": "", "groups": [{"digests": {"image": "0g"}}]},
        lambda entry: {**entry, "pages": "", "groups": [3]},
        *(
            lambda entry, count=count: {
                **entry,
                "pages": "",
                "num_frames": 99,
                "frames": [0, 99],
                "groups": [{"first": 0, "chunks": [[1, count]], "digests": {}}],
            }
            for count in (2**40, 2**63)
        ),
        lambda entry: {**entry, "pages": "", "frames": {}},
    ],
)
def test_damaged_identities_name_the_companion(
    places: tuple[Path, Path], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    source, latents = places
    with seqrecord.open(latents) as dataset:
        entry = dataset.episodes["b"].metadata["derived_from"]
    edit.set_metadata(latents, ["b"], {"derived_from": change(entry)})
    with pytest.raises(FormatError) as error:
        seqrecord.open(source, join=[latents])
    assert (error.value.file, error.value.episode) == (str(latents), "b")


def test_whole_episodes_are_found_without_parsing_identities(places: tuple[Path, Path]) -> None:
    """Which takes a second for 50,000 episodes: identities that cannot be parsed are found."""
    source, latents = places
    expected = read_all(source, join=[latents])
    with seqrecord.open(latents) as dataset:
        entries = {key: e.metadata["derived_from"] for key, e in dataset.episodes.items()}
    for key in [*entries][1:]:
        edit.set_metadata(latents, [key], {"derived_from": {**entries[key], "num_frames": "?"}})
    edit.delete_episodes(source, ["b"])
    edit.rename_episodes(source, {"a": "c", "c": "x"})
    edit.rewrite_files(source, min_unused=0.01)
    frames = {{"a": "c", "c": "x"}.get(k, k): v for k, v in expected.items() if k != "b"}
    check_frames(read_all(source, join=[latents]), frames)
    edit.trim_episodes(source, ["d"], slice(1, None))
    with pytest.raises(FormatError):
        seqrecord.open(source, join=[latents])


def test_a_damaged_mark_costs_time_only(places: tuple[Path, Path]) -> None:
    source, latents = places
    expected = read_all(source, join=[latents])
    with seqrecord.open(latents) as dataset:
        entry = dataset.episodes["b"].metadata["derived_from"]
    for mark in (entry["pages"][:-1] + "g", entry["pages"][:-2] + " 0", "", 3):
        edit.set_metadata(latents, ["b"], {"derived_from": {**entry, "pages": mark}})
        check_frames(read_all(source, join=[latents]), expected)


@pytest.mark.parametrize("codec", ["h264", "png", "fast"])
def test_companions_with_video(tmp_path: Path, codec: str) -> None:
    """Episodes without a partner, and frames beyond it, have chunks of no bytes."""
    pytest.importorskip("av")
    lengths, shown = {"a": 600, "b": 30, "c": 40}, {"a": 600, "b": 30}
    write_dataset(tmp_path / "source", {k: columns(x=range(n)) for k, n in lengths.items()})
    edit.trim_episodes(tmp_path / "source", ["a"], slice(290, None))
    version = edit.list_versions(tmp_path / "source")[1].id
    ramp = np.arange(32, dtype=np.uint8)[None, :, None] * np.ones((32, 1, 3), np.uint8)
    frames = {
        key: columns(image=[ramp + i % 200 for i in range(290 if key == "a" else 0, length)])
        for key, length in shown.items()
    }
    write_derived(tmp_path / "video", tmp_path / "source", frames, codecs={"image": codec})
    edit.restore_version(tmp_path / "source", version)
    stored = read_all(tmp_path / "video")
    joined = read_all(tmp_path / "source", join=[tmp_path / "video"], missing="pad")
    expected = {key: columns(x=range(length)) for key, length in lengths.items()}
    for key, first in (("a", 290), ("b", 0)):
        for number, frame in enumerate(stored[key], first):
            expected[key][number] |= frame
    check_frames(joined, expected)
    with seqrecord.open(tmp_path / "source", join=[tmp_path / "video"], missing="pad") as dataset:
        clips = [
            (clip["episode"], int(clip["start"]))
            for clip in seqrecord.SeqRecordPipe(dataset, clip_len=8, shuffle=False)
        ]
    assert clips == [("a", n) for n in range(290, 593)] + [("b", n) for n in range(23)]


def test_statistics_cover_joined_features(places: tuple[Path, Path]) -> None:
    source, latents = places
    with seqrecord.open(source, join=[latents]) as dataset:
        stored, computed = dataset.statistics, dataset.compute_statistics()
        assert {*stored} == {*computed}
        for name, feature in computed.items():
            np.testing.assert_allclose(stored[name].mean, feature.mean, rtol=1e-6)
    edit.delete_episodes(source, ["b"])
    with seqrecord.open(source, join=[latents]) as dataset:
        assert "latent" not in dataset.statistics  # of other frames


def test_a_damaged_page_names_its_file(places: tuple[Path, Path]) -> None:
    source, latents = places
    [file] = (latents / "records").glob("*.seqrec")
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(data)
    with seqrecord.open(source, join=[latents]) as dataset:
        episode = dataset.episodes["a"]
        assert episode.read([0], features=["image"])["image"].shape == (1, 4, 5, 3)
        with pytest.raises(seqrecord.errors.ChecksumError) as error:
            episode[:]
    assert error.value.file == str(file)


def test_edits_refuse_a_joined_dataset(places: tuple[Path, Path]) -> None:
    source, latents = places
    with seqrecord.open(source, join=[latents]) as dataset:
        for call in (
            lambda: edit.delete_episodes(dataset, ["a"]),  # type: ignore[arg-type]
            lambda: seqrecord.add_statistics(dataset),  # type: ignore[arg-type]
        ):
            with pytest.raises(seqrecord.errors.LocationError, match="edit add PATH NAME --from"):
                call()
    with pytest.raises(seqrecord.errors.LocationError, match="the place of a dataset"):
        edit.drop_features(seqrecord.open(source), "step")  # type: ignore[arg-type]


def test_a_joined_feature_is_stored_for_good(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, latents = places
    edit.trim_episodes(source, ["d"], slice(5, 19))
    expected = read_all(source, join=[latents])
    with seqrecord.open(source, join=[latents]) as dataset:
        for name in ("latent", "boxes", "text"):
            edit.add_feature(
                source,
                name,
                edit.values_of_dataset(dataset, name),
                spec=dataset.features[name],
            )
    check_frames(read_all(source), expected)
    assert "key and length alone" not in caplog.text


def test_values_of_a_dataset_by_key_and_length_alone(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing compares a companion that is not joined: of renumbered episodes, another's values."""
    source, latents = places
    edit.delete_episodes(source, ["a", "c", "d"])
    edit.rename_episodes(source, {"b": "a"})
    edit.trim_episodes(latents, ["a"], slice(LENGTHS["b"]))
    with seqrecord.open(latents) as companion:
        edit.add_feature(source, "latent", edit.values_of_dataset(companion, "latent"))
    [record] = [r for r in caplog.records if "by key and length alone" in r.message]
    assert record.levelname == "WARNING"
    assert "for example to a" in record.message


def test_trimmed_companions(places: tuple[Path, Path]) -> None:
    source, latents = places
    edit.trim_episodes(latents, ["d"], slice(7, 21))
    with pytest.raises(JoinError, match="a trimmed episode of a companion has fewer frames"):
        seqrecord.open(source, join=[latents])
    edit.trim_episodes(source, ["d"], slice(8, 19))
    latent = latent_frames({"b": (2, 3), "d": (0,)})
    expected = cut(merged_frames(source_frames(), latent), "d", 8, 19)
    check_frames(read_all(source, join=[latents]), expected)


def test_a_companion_trimmed_between_chunks(places: tuple[Path, Path]) -> None:
    source, latents = places
    with seqrecord.open(latents) as dataset:
        sizes = [int(table.num_frames[0]) for table in dataset.contents.index.groups]
    start = int(np.lcm.reduce(sizes))
    assert start < 23
    edit.trim_episodes(latents, ["d"], slice(start, None))
    expected = merged_frames(source_frames(), latent_frames({"b": (2, 3)}))
    expected["d"][:start] = source_frames()["d"][:start]
    check_frames(read_all(source, join=[latents]), expected)


def test_every_companion_is_checked_and_closed(places: tuple[Path, Path]) -> None:
    source, latents = places
    with pytest.raises(seqrecord.NotFoundError):
        seqrecord.open(source, join=[latents, latents.with_name("none")])
    with pytest.raises(seqrecord.NotFoundError):
        seqrecord.open(source.with_name("none"), join=[latents])
    with pytest.raises(JoinError, match=r"table cannot be read: .*No such file"):
        seqrecord.open(source, join=[latents.with_name("none.parquet")])
    with pytest.raises(SchemaError, match=r"expected: some of image, .*latent.*; got: none"):
        seqrecord.open(source, join=[latents], features=["latent", "none"])
    with seqrecord.open(source, join=[latents], features=["latent"]) as dataset:
        assert [*dataset.features] == ["latent"]


def test_tables_and_datasets_join_together(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, latents = places
    rows = [(key, i, float(i)) for key, n in LENGTHS.items() for i in range(n) if i != 6]
    names, numbers, values = zip(*rows, strict=True)
    table = {"episode": names, "frame": numbers, "score": values}
    with caplog.at_level(logging.WARNING):
        frames = read_all(source, join=[latents, table])
    assert "by key and length" not in caplog.text
    scores = {
        key: [{} if i == 6 else {"score": float(i)} for i in range(n)] for key, n in LENGTHS.items()
    }
    latent = latent_frames({"b": (2, 3), "d": (0,)})
    check_frames(frames, merged_frames(source_frames(), latent, scores))


def test_edit_add_stores_values_of_the_present_frames(places: tuple[Path, Path]) -> None:
    source, latents = places
    edit.trim_episodes(source, ["d"], slice(5, 19))
    edit.rename_episodes(source, {"a": "x/a"})
    expected = read_all(source, join=[latents])
    for name in ("latent", "boxes", "text"):
        result = run("edit", "add", source, name, "--from", latents)
        assert f"{name}: " in result.output
    check_frames(read_all(source), expected)
    table = source.with_name("scores.parquet")
    rows = {"episode": ["x/a", "b", "c", "d"], "score": [0.0, 1.0, 2.0, 3.0]}
    pq.write_table(pa.table(rows), table)
    run("edit", "add", source, "score", "--from", table)
    assert read_all(source)["c"][0]["score"] == 2


def test_a_derived_dataset_joins_its_source(places: tuple[Path, Path]) -> None:
    source, latents = places
    edit.rename_episodes(source, {"a": "b", "b": "x"})
    latent = latent_frames({"b": (2, 3), "d": (0,)})
    expected = merged_frames(latent, source_frames())
    check_frames(read_all(latents, join=[source]), expected)
    edit.trim_episodes(source, ["d"], slice(4, 20))
    for number in (*range(4), *range(20, 23)):
        expected["d"][number] = latent["d"][number]
    check_frames(read_all(latents, join=[source]), expected)
    edit.trim_episodes(latents, ["d"], slice(7, 21))
    check_frames(read_all(latents, join=[source]), cut(expected, "d", 7, 21))
    edit.delete_episodes(source, ["x"])
    with pytest.raises(JoinError) as error:
        read_all(latents, join=[source])
    assert error.value.episode == "b"
    edit.add_feature(source, "step", lambda episode: [np.int32(7)] * len(episode), overwrite=True)
    with pytest.raises(JoinError, match="feature step has changed"):
        seqrecord.open(latents, join=[source], missing="pad")


def test_two_datasets_derived_from_one_source(places: tuple[Path, Path], tmp_path: Path) -> None:
    source, latents = places
    edit.trim_episodes(source, ["d"], slice(5, 19))
    edit.rename_episodes(source, {"a": "x/a"})
    returns = {
        {"a": "x/a"}.get(k, k): columns(ret=np.arange(n, dtype="f4")) for k, n in LENGTHS.items()
    }
    returns = cut(returns, "d", 5, 19)
    write_derived(tmp_path / "returns", source, returns)
    latent = cut(latent_frames({"b": (2, 3), "d": (0,)}), "d", 5, 19)
    expected = merged_frames({{"a": "x/a"}.get(k, k): v for k, v in latent.items()}, returns)
    check_frames(read_all(tmp_path / "returns", join=[latents]), expected)
    edit.add_feature(source, "step", lambda episode: [np.int32(7)] * len(episode), overwrite=True)
    write_derived(
        tmp_path / "third", source, {k: columns(z=range(len(v))) for k, v in returns.items()}
    )
    with pytest.raises(JoinError, match="different frames") as error:
        seqrecord.open(tmp_path / "third", join=[latents])
    assert "lengths" not in error.value.message


def test_keys_alone_prove_nothing(
    places: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another dataset with the keys and lengths of the source, and other features."""
    _, latents = places
    other = {key: columns(other=range(length)) for key, length in LENGTHS.items()}
    write_dataset(tmp_path / "other", other)
    with pytest.raises(JoinError) as error:
        seqrecord.open(tmp_path / "other", join=[latents])
    assert error.value.got == "none of its features is left: image, step"
    with caplog.at_level(logging.WARNING):
        joined = read_all(tmp_path / "other", join=[latents], check="lengths")
    assert "by key and length alone" in caplog.text
    check_frames(joined, merged_frames(other, latent_frames({"b": (2, 3), "d": (0,)})))


def test_values_per_sample_are_refused(places: tuple[Path, Path]) -> None:
    source, latents = places
    with seqrecord.open(latents) as dataset:
        entry = dataset.episodes["a"].metadata["derived_from"]
    edit.set_metadata(latents, ["a"], {"derived_from": {**entry, "per": "sample"}})
    with pytest.raises(JoinError, match="values per sample"):
        seqrecord.open(source, join=[latents])


def test_few_changed_episodes_of_many(tmp_path: Path) -> None:
    """Their identities are searched for in the text of all, if these are more than 200."""
    source, latents = tmp_path / "source", tmp_path / "latents"
    many = {f"n{i:03}": columns(step=np.arange(1, dtype="<i4") + i) for i in range(200)}
    own = {**source_frames(), **many}
    latent = {key: [{"latent": np.full(6, i, "<f4")}] for i, key in enumerate(many)}
    latent = {**latent_frames({"b": (2, 3), "d": (0,)}), **latent}
    write_dataset(source, own, chunk_frames=4)
    write_derived(latents, source, latent, chunk_frames=5)
    edit.trim_episodes(source, ["a"], slice(3, 14))
    edit.rename_episodes(source, {"d": "x/d"})
    expected = cut(merged_frames(own, latent), "a", 3, 14)
    expected = {{"d": "x/d"}.get(key, key): frames for key, frames in expected.items()}
    check_frames(read_all(source, join=[latents]), expected)
    both = source.with_name("both")
    edit.merge_datasets([source, source], both, prefixes=["y/", "z/"])
    merged = {f"{prefix}/{key}": frames for prefix in "yz" for key, frames in expected.items()}
    check_frames(read_all(both, join=[latents]), merged)
    with SeqRecordWriter(source, mode="append") as writer, writer.episode("new") as episode:
        for frame in columns(image=noise(9, 4, 5, 3, seed=99), step=np.arange(9, dtype="<i4")):
            episode.append(frame)
    with pytest.raises(JoinError, match="without a partner"):
        seqrecord.open(source, join=[latents])
    check_frames(read_all(source, join=[latents], missing="drop"), expected)


@pytest.mark.parametrize("form", [list, tuple, set, dict.fromkeys, lambda join: (x for x in join)])
def test_options_of_urls_are_not_for_a_local_dataset(tmp_path: Path, form: Any) -> None:
    """In a `join` of any form; keys of a dict are a set."""
    write_dataset(tmp_path / "records", {"a": [{"x": np.float32(1)}]})
    url = f"memory://{tmp_path.name}/companion"
    with SeqRecordWriter(url) as writer, writer.episode("a") as episode:
        episode.append({"y": np.float32(2)})
    join = form([url])
    join = join.keys() if isinstance(join, dict) else join
    options: Any = {"storage_options": {"use_listings_cache": False}}
    with seqrecord.open(tmp_path / "records", join=join, **options) as dataset:
        assert dataset.episodes["a"][0] == {"x": 1, "y": 2}


@pytest.mark.parametrize("join", [5, True, None, object()])
def test_other_objects_are_no_companions(tmp_path: Path, join: Any) -> None:
    write_dataset(tmp_path / "records", {"a": [{"x": np.float32(1)}]})
    with pytest.raises(ClipError, match=r"join is not valid.*a list of datasets and tables"):
        seqrecord.open(tmp_path / "records", join=join)
