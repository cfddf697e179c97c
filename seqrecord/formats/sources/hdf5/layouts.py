"""Layouts of HDF5 robot recordings: episodes and features of a file.

::

    ALOHA       one file per episode    /action [T, 14], /observations/qpos [T, 14], …,
                                        /observations/images/CAMERA [T, H, W, 3], or [T, L]: JPEG
    robomimic   many in one file        /data/demo_0/actions [T, 7], /data/demo_0/obs/… [T, …],
                                        /data/demo_0/next_obs/…, /mask/train
    DROID       one folder per episode  trajectory.h5: /action/…, /observation/… [T, …];
                                        metadata_*.json, recordings/MP4/SERIAL.mp4

References: https://github.com/tonyzhaozh/aloha (record_episodes.py),
https://robomimic.github.io/docs/datasets/overview.html, https://github.com/droid-dataset/droid
(trajectory_writer.py) and its dataset page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.originals import natural_order
from seqrecord.formats.sources.common.specs import frame_rate
from seqrecord.formats.sources.hdf5.files import (
    attributes,
    datasets,
    encoded_row,
    first_image,
    is_text,
    load_h5py,
    text_of,
)
from seqrecord.in_place.files import is_directory, json_object, list_folder, read_bytes
from seqrecord.store.text import repr_of

AUXILIARY = frozenset({"compress_len", "depth_compress_len"})
"""ALOHA's lengths of encoded images, one row per camera."""

_LENGTHS = ("num_samples", "num_frames", "num_timesteps")
"""Attributes that declare an episode's number of rows."""

_CAMERAS = ("wrist", "ext1", "ext2")
_VIDEOS = "recordings/MP4"
_MAX_JSON = 1 << 20
_MAX_TEXT = 4096
_SHOWN = 12  # datasets listed in errors


@dataclass(frozen=True)
class Hdf5Episode:
    """An episode in an open file.

    Args:
        layout: name of the layout, `mapped` if the user's `map` takes its place.
        stored: datasets by feature name.
        left_out: paths of datasets that cannot be features.
        optional: features read only if selected by name.
        num_frames: declared number of frames, `None` if not declared.
        fps: frames per second, if known.
        metadata: the episode's metadata.
        videos: video files by feature name, one frame per row.
        datasets: all datasets of the episode's group, by path.
        is_mapped: whether the user's `map` defines the features.
        jpeg_order: channels of JPEGs: `bgr` for ALOHA's recorder, also of mapped features.
    """

    layout: str
    stored: Mapping[str, Any]
    left_out: Sequence[str] = ()
    optional: frozenset[str] = frozenset()
    num_frames: int | None = None
    fps: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    videos: Mapping[str, Path] = field(default_factory=dict)
    datasets: Mapping[str, Any] = field(default_factory=dict)
    is_mapped: bool = False
    jpeg_order: str = "rgb"


def groups(file: Any) -> list[str]:
    """Return the groups of episodes in natural order; `/` if the file is one episode.

    robomimic's groups are demonstrations, `/data/demo_0`.
    """
    data = group_of(file, "data")
    names = [] if data is None else [name for name in data if group_of(data, name) is not None]
    demos = [f"/data/{name}" for name in sorted(names, key=natural_order)]
    return [demo for demo in demos if "actions" in file[demo]] or ["/"]


def read_episode(
    file: Any, path: Path, group: str, places: Mapping[str, str] | None
) -> Hdf5Episode:
    """Return the episode of a group.

    `places` maps feature names to paths in the file, or in each demonstration for robomimic; all
    other datasets are ignored then. Raises `SourceError` with the file's datasets for an unknown
    layout.
    """
    if group != "/" and group_of(file, group) is None:
        raise SourceError(f"missing group {group}")
    datasets_by_path = datasets(file[group])
    layout = _layout_of(file, group, datasets_by_path)
    if layout == "robomimic":
        episode = _robomimic(file, path, group, {} if places else datasets_by_path)
    elif places:
        episode = Hdf5Episode(
            "mapped", {}, num_frames=declared_rows(file), metadata=attributes(file)
        )
    elif layout == "DROID":
        episode = _droid(file, datasets_by_path, path)
    elif layout == "ALOHA":
        episode = _aloha(file, datasets_by_path, path)
    else:
        shown = [f"/{name} {list(datasets_by_path[name].shape)}" for name in datasets_by_path]
        raise SourceError(
            "unknown layout of an HDF5 file",
            expected="ALOHA (/action, /observations/…), robomimic (/data/demo_0/actions), DROID "
            "(/action/…, /observation/…), or --map FEATURE=PATH for each feature",
            got=", ".join(shown[:_SHOWN]) or "no datasets",
        )
    if places:
        episode = replace(episode, stored=_map_features(datasets_by_path, places), is_mapped=True)
    order = "bgr" if layout == "ALOHA" else "rgb"
    return replace(episode, datasets=datasets_by_path, jpeg_order=order)


def _layout_of(file: Any, group: str, datasets_by_path: Mapping[str, Any]) -> str | None:
    """Return the layout of an episode, `None` if it is unknown; a map does not change it."""
    if group != "/":
        return "robomimic"
    if group_of(file, "action") is not None and group_of(file, "observation") is not None:
        return "DROID"
    has_observations = any(name.startswith("observations/") for name in datasets_by_path)
    return "ALOHA" if "action" in datasets_by_path and has_observations else None


def _aloha(file: Any, datasets_by_path: Mapping[str, Any], path: Path) -> Hdf5Episode:
    episode = _sort_datasets("ALOHA", datasets_by_path, path, attributes(file))
    stored = (item for item in episode.stored.items() if item[0] not in AUXILIARY)
    return replace(episode, stored=_by_feature(stored), num_frames=declared_rows(file))


def _robomimic(
    file: Any, path: Path, group: str, datasets_by_path: Mapping[str, Any]
) -> Hdf5Episode:
    demo = group.rpartition("/")[2]
    metadata = {"demonstration": demo, **attributes(file[group], without=("model_file",))}
    episode = _sort_datasets("robomimic", datasets_by_path, path, metadata)
    feature_datasets = _by_feature(episode.stored.items())
    environment = _environment(file["data"])
    if isinstance(environment.get("env_name"), str):
        episode.metadata["env_name"] = environment["env_name"]
    if masks := [mask for mask, demos in mask_lists(file).items() if demo in demos]:
        episode.metadata["masks"] = masks
    arguments = environment.get("env_kwargs")
    return replace(
        episode,
        stored=feature_datasets,
        # Repeats `obs` of the next frame; only the last row is new.
        optional=frozenset(
            feature for feature in feature_datasets if feature.startswith("next_obs.")
        ),
        num_frames=declared_rows(file[group]),
        # robosuite's control frequency in Hz
        fps=frame_rate(arguments.get("control_freq")) if isinstance(arguments, dict) else None,
    )


def _droid(file: Any, datasets_by_path: Mapping[str, Any], path: Path) -> Hdf5Episode:
    """Return a DROID episode; serial numbers of cameras become wrist, ext1 and ext2."""
    metadata = _droid_metadata(path.parent)
    serials = {
        str(metadata[f"{camera}_cam_serial"]): camera
        for camera in _CAMERAS
        if metadata.get(f"{camera}_cam_serial")
    }
    episode = _sort_datasets("DROID", datasets_by_path, path, attributes(file))
    named_datasets: list[tuple[str, Any]] = []  # by path with names of cameras
    left_out = list(episode.left_out)
    for name, dataset in episode.stored.items():
        *parents, leaf = name.split("/")
        if "controller_info" in parents or "videos" in parents:
            left_out.append(name)  # DROID's reader ignores their rows too
            continue
        head, _, tail = leaf.partition("_")
        leaf = "_".join(filter(None, (serials.get(head, head), tail)))
        named_datasets.append(("/".join([*parents, leaf]), dataset))
    episode.metadata.update(metadata)
    videos = _droid_videos(path.parent, serials)
    stored = _by_feature(named_datasets)
    return replace(episode, stored=stored, left_out=left_out, videos=videos)


def _droid_videos(folder: Path, serials: Mapping[str, str]) -> dict[str, Path]:
    """Return the cameras' videos, `SERIAL.mp4`, without stereo videos (`SERIAL-stereo.mp4`)."""
    place = folder / _VIDEOS
    if not is_directory(place):
        return {}
    names = sorted(name for name, is_folder in list_folder(place) if not is_folder)
    videos_by_camera = {
        serials.get(stem, stem): place / name
        for name in names
        if (stem := name.removesuffix(".mp4")) != name and "-" not in stem
    }
    order = [camera for camera in (*_CAMERAS, *videos_by_camera) if camera in videos_by_camera]
    return {
        f"observation.image.{camera}": videos_by_camera[camera] for camera in dict.fromkeys(order)
    }


def is_droid_metadata(name: str) -> bool:
    """Return whether a file beside `trajectory.h5` has DROID's metadata."""
    return name.startswith("metadata_") and name.endswith(".json")


def _droid_metadata(folder: Path) -> dict[str, Any]:
    """Return numbers and texts of the JSON object beside `trajectory.h5`; empty without one."""
    for name, is_folder in sorted(list_folder(folder)):
        if is_droid_metadata(name) and not is_folder:
            with located(SourceError, file=str(folder / name)):
                value = json_object(read_bytes(folder / name, _MAX_JSON))
            return {k: v for k, v in value.items() if _is_json_scalar(k) and _is_json_scalar(v)}
    return {}


def _is_json_scalar(value: object) -> bool:
    if isinstance(value, str):
        return text_of(value) == value
    return isinstance(value, (int, float)) and abs(value) < math.inf


def _map_features(datasets_by_path: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    feature_datasets = {}
    for feature, place in places.items():
        if place.strip("/") not in datasets_by_path:
            raise SourceError(
                f"missing dataset {place}",
                feature=feature,
                expected="one of "
                + ", ".join(f"/{name}" for name in list(datasets_by_path)[:_SHOWN]),
            )
        feature_datasets[feature] = datasets_by_path[place.strip("/")]
    return feature_datasets


def _by_feature(named_datasets: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return datasets by feature name: their paths with dots. Raises `SourceError` for two."""
    feature_datasets: dict[str, Any] = {}
    for name, dataset in named_datasets:
        feature = name.replace("/", ".")
        if (first_dataset := feature_datasets.setdefault(feature, dataset)) is not dataset:
            raise SourceError(
                "two datasets have the same feature name; choose one by --map FEATURE=PATH",
                feature=feature,
                got=f"{first_dataset.name} and {dataset.name}",
            )
    return feature_datasets


def _sort_datasets(
    layout: str,
    datasets_by_path: Mapping[str, Any],
    path: Path,
    episode_attributes: Mapping[str, Any],
) -> Hdf5Episode:
    """Sort datasets: with a value, image or text per frame; single values; and all others.

    The metadata are the episode's `episode_attributes` and the single values; `stored` has datasets
    by path.
    """
    frames: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    left_out: list[str] = []
    for name, dataset in datasets_by_path.items():
        if dataset.shape == () and dataset.dtype.kind in "biuf":
            if np.isfinite(dataset[()]):
                values[name] = dataset[()].item()
        elif dataset.size == 1 and (text := _only_text(dataset)) is not None:
            values[name] = text[:_MAX_TEXT]
        elif dataset.shape and (
            dataset.dtype.kind in "biufc" or first_image(dataset, path) is not None
        ):
            frames[name] = dataset
        elif is_text(dataset):
            texts[name] = dataset
        else:
            left_out.append(name)
    rows = [frames[name].shape[:1] for name in ("action", "actions", *frames) if name in frames]
    for name, dataset in texts.items():  # other lists of texts are not per frame
        if rows[:1] == [dataset.shape]:
            frames[name] = dataset
        else:
            left_out.append(name)
    metadata = {"layout": layout, **episode_attributes, **values}
    return Hdf5Episode(layout, frames, left_out, metadata=metadata)


def _only_text(dataset: Any) -> str | None:
    """Return a dataset's single value if it is text."""
    if not is_text(dataset) or dataset.dtype.itemsize > _MAX_JSON:
        return None
    value = dataset[(0,) * dataset.ndim]
    return None if encoded_row(value) is not None else text_of(value)


def group_of(parent: Any, name: str) -> Any | None:
    """Return the group of this name in this file; `None` if it is missing or an external link."""
    h5py = load_h5py()
    if name not in parent or isinstance(parent.get(name, getlink=True), h5py.ExternalLink):
        return None
    return parent[name] if parent.get(name, getclass=True) is h5py.Group else None


def _environment(data: Any) -> dict[str, Any]:
    text = text_of(data.attrs.get("env_args"))
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def mask_lists(file: Any) -> dict[str, list[str]]:
    """Return robomimic's demonstrations by filter key."""
    masks = group_of(file, "mask")
    if masks is None:
        return {}
    mask_datasets = {
        name: masks[name] for name in masks if isinstance(masks[name], load_h5py().Dataset)
    }
    return {
        name: [text for demo in demos[()] if (text := text_of(demo)) is not None]
        for name, demos in mask_datasets.items()
        if demos.ndim == 1 and demos.nbytes <= _MAX_JSON
    }


def declared_rows(group: Any) -> int | None:
    """Return the number of rows declared by an episode's attributes."""
    return next(filter(lambda n: n is not None, (whole_number(group, n) for n in _LENGTHS)), None)


def whole_number(group: Any, name: str) -> int | None:
    """Return an attribute of any numeric type as int; `None` if it is missing or not whole.

    Raises `SourceError` for an invalid `num_samples`.
    """
    if name not in group.attrs:
        return None
    value: npt.NDArray[Any] = np.asarray(group.attrs[name])
    is_number = value.size == 1 and value.dtype.kind in "iuf" and bool(np.isfinite(value).all())
    if is_number and value.item() == int(value.item()):
        return int(value.item())
    if name == "num_samples":
        raise SourceError(
            "invalid num_samples",
            expected="a whole number",
            got=repr_of(group.attrs[name]),
        )
    return None
