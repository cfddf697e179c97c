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
from collections.abc import Mapping, Sequence
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
        layout: name of the layout.
        stored: datasets by feature name.
        left_out: paths of datasets that cannot be features.
        optional: features read only if selected by name.
        num_frames: declared number of frames, `None` if not declared.
        fps: frames per second, if known.
        metadata: the episode's metadata.
        videos: video files by feature name, one frame per row.
        datasets: all datasets of the episode's group, by path.
        is_mapped: whether the user's `map` defines the features.
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
    found = datasets(file[group])
    if group != "/":
        one = _robomimic(file, path, group, {} if places else found)
    elif places:
        one = Hdf5Episode("mapped", {}, num_frames=declared_rows(file), metadata=attributes(file))
    elif group_of(file, "action") is not None and group_of(file, "observation") is not None:
        one = _droid(file, found, path)
    elif "action" in found and any(name.startswith("observations/") for name in found):
        one = _aloha(file, found, path)
    else:
        shown = [f"/{name} {list(found[name].shape)}" for name in found]
        raise SourceError(
            "unknown layout of an HDF5 file",
            expected="ALOHA (/action, /observations/…), robomimic (/data/demo_0/actions), DROID "
            "(/action/…, /observation/…), or --map FEATURE=PATH for each feature",
            got=", ".join(shown[:_SHOWN]) or "no datasets",
        )
    if places:
        one = replace(one, stored=_mapped(found, places), is_mapped=True)
    return replace(one, datasets=found)


def _aloha(file: Any, found: Mapping[str, Any], path: Path) -> Hdf5Episode:
    one = _sorted_out("ALOHA", found, path, attributes(file))
    stored = {
        name.replace("/", "."): item for name, item in one.stored.items() if name not in AUXILIARY
    }
    return replace(one, stored=stored, num_frames=declared_rows(file))


def _robomimic(file: Any, path: Path, group: str, found: Mapping[str, Any]) -> Hdf5Episode:
    demo = group.rpartition("/")[2]
    own = {"demonstration": demo, **attributes(file[group], without=("model_file",))}
    one = _sorted_out("robomimic", found, path, own)
    stored = {name.replace("/", "."): item for name, item in one.stored.items()}
    environment = _environment(file["data"])
    if isinstance(environment.get("env_name"), str):
        one.metadata["env_name"] = environment["env_name"]
    if masks := [mask for mask, demos in mask_lists(file).items() if demo in demos]:
        one.metadata["masks"] = masks
    arguments = environment.get("env_kwargs")
    return replace(
        one,
        stored=stored,
        # Repeats `obs` of the next frame; only the last row is new.
        optional=frozenset(feature for feature in stored if feature.startswith("next_obs.")),
        num_frames=declared_rows(file[group]),
        # robosuite's control frequency in Hz
        fps=frame_rate(arguments.get("control_freq")) if isinstance(arguments, dict) else None,
    )


def _droid(file: Any, found: Mapping[str, Any], path: Path) -> Hdf5Episode:
    """Return a DROID episode; serial numbers of cameras become wrist, ext1 and ext2."""
    about = _droid_metadata(path.parent)
    serials = {
        str(about[f"{camera}_cam_serial"]): camera
        for camera in _CAMERAS
        if about.get(f"{camera}_cam_serial")
    }
    one = _sorted_out("DROID", found, path, attributes(file))
    stored: dict[str, Any] = {}
    left_out = list(one.left_out)
    for name, item in one.stored.items():
        *above, last = name.split("/")
        if "controller_info" in above or "videos" in above:
            left_out.append(name)  # DROID's reader ignores their rows too
            continue
        head, _, tail = last.partition("_")
        last = "_".join(filter(None, (serials.get(head, head), tail)))
        stored[".".join([*above, last])] = item
    one.metadata.update(about)
    videos = _droid_videos(path.parent, serials)
    return replace(one, stored=stored, left_out=left_out, videos=videos)


def _droid_videos(folder: Path, serials: Mapping[str, str]) -> dict[str, Path]:
    """Return the cameras' videos, `SERIAL.mp4`, without stereo videos (`SERIAL-stereo.mp4`)."""
    place = folder / _VIDEOS
    if not is_directory(place):
        return {}
    names = sorted(name for name, is_folder in list_folder(place) if not is_folder)
    found = {
        serials.get(stem, stem): place / name
        for name in names
        if (stem := name.removesuffix(".mp4")) != name and "-" not in stem
    }
    order = [each for each in (*_CAMERAS, *found) if each in found]
    return {f"observation.image.{camera}": found[camera] for camera in dict.fromkeys(order)}


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
    return isinstance(value, (int, float)) and math.isfinite(value)


def _mapped(found: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    stored = {}
    for feature, place in places.items():
        if place.strip("/") not in found:
            raise SourceError(
                f"missing dataset {place}",
                feature=feature,
                expected="one of " + ", ".join(f"/{name}" for name in list(found)[:_SHOWN]),
            )
        stored[feature] = found[place.strip("/")]
    return stored


def _sorted_out(
    layout: str, found: Mapping[str, Any], path: Path, own: Mapping[str, Any]
) -> Hdf5Episode:
    """Sort datasets: with a value, image or text per frame; single values; and all others.

    The metadata are the episode's `own` and the single values; `stored` has datasets by path.
    """
    frames: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    left_out: list[str] = []
    for name, item in found.items():
        if item.shape == () and item.dtype.kind in "biuf":
            if np.isfinite(item[()]):
                values[name] = item[()].item()
        elif item.size == 1 and (text := _only_text(item)) is not None:
            values[name] = text[:_MAX_TEXT]
        elif item.shape and (item.dtype.kind in "biufc" or first_image(item, path) is not None):
            frames[name] = item
        elif is_text(item):
            texts[name] = item
        else:
            left_out.append(name)
    rows = [frames[name].shape[:1] for name in ("action", "actions", *frames) if name in frames]
    for name, item in texts.items():  # other lists of texts are not per frame
        if rows[:1] == [item.shape]:
            frames[name] = item
        else:
            left_out.append(name)
    metadata = {"layout": layout, **own, **values}
    return Hdf5Episode(layout, frames, left_out, metadata=metadata)


def _only_text(item: Any) -> str | None:
    """Return a dataset's single value if it is text."""
    if not is_text(item) or item.dtype.itemsize > _MAX_JSON:
        return None
    value = item[(0,) * item.ndim]
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
    found = {name: masks[name] for name in masks if isinstance(masks[name], load_h5py().Dataset)}
    return {
        name: [text for each in demos[()] if (text := text_of(each)) is not None]
        for name, demos in found.items()
        if demos.ndim == 1 and demos.nbytes <= _MAX_JSON
    }


def declared_rows(group: Any) -> int | None:
    """Return the number of rows declared by an episode's attributes."""
    return next(filter(lambda n: n is not None, (whole_number(group, n) for n in _LENGTHS)), None)


def whole_number(item: Any, name: str) -> int | None:
    """Return an attribute of any numeric type as int; `None` if it is missing or not whole.

    Raises `SourceError` for an invalid `num_samples`.
    """
    if name not in item.attrs:
        return None
    value: npt.NDArray[Any] = np.asarray(item.attrs[name])
    is_number = value.size == 1 and value.dtype.kind in "iuf" and bool(np.isfinite(value).all())
    if is_number and value.item() == int(value.item()):
        return int(value.item())
    if name == "num_samples":
        raise SourceError(
            "invalid num_samples",
            expected="a whole number",
            got=repr_of(item.attrs[name]),
        )
    return None
