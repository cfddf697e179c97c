"""Source for folders of episodes with images and npy files."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.array_files import NPZ, array_header, arrays_form
from seqrecord.formats.sources.common.frame_names import ending_of, name_specs, time_note
from seqrecord.formats.sources.common.images import (
    IMAGE_ENDINGS,
    image_header,
    load_imagecodecs,
    passthrough_codec,
    referable_codec,
)
from seqrecord.formats.sources.common.orientation import shape_of
from seqrecord.formats.sources.common.originals import (
    FirstError,
    NumberedFrames,
    Scan,
    ScannedInPlace,
    find_files,
    key_of,
)
from seqrecord.formats.sources.common.palettes import form_of
from seqrecord.formats.sources.common.point_files import POINT_ENDINGS, read_points
from seqrecord.formats.sources.common.specs import feature_name, feature_spec, merge_specs
from seqrecord.formats.sources.common.tables import frames_shape
from seqrecord.formats.sources.folders.encodings import kind_of_values, known_meaning
from seqrecord.formats.sources.folders.episode_frames import (
    check_time_axis,
    files_of,
    read_frames,
    read_times,
)
from seqrecord.formats.sources.folders.exported import ExportedFeature, read_description
from seqrecord.formats.sources.folders.folder_account import (
    EpisodeFiles,
    account_of,
    camera_of,
    encoding_notes,
)
from seqrecord.formats.sources.folders.rows import RowFiles, find_rows
from seqrecord.formats.sources.folders.tree import (
    METADATA,
    EpisodeFolder,
    FeatureFolder,
    files_like,
    find_episodes,
    is_text_name,
    read_metadata,
)
from seqrecord.formats.sources.inventory import Account, is_document
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_directory, is_file
from seqrecord.in_place.references import external_files, external_folders, referable_features
from seqrecord.store.format.references import ExternalFile
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import CodecConfig, FeatureSpec, Frame
from seqrecord.store.text import counted

_logger = logging.getLogger("seqrecord")

_DECODED: tuple[CodecConfig, ...] = ()  # no codec: images are decoded


@dataclass(frozen=True)
class FolderSource(NumberedFrames, ScannedInPlace):
    """A tree of episode folders.

    ::

        ROOT/…/EPISODE/FEATURE/000000.png     one file per frame: images, npy, npz, flo, exr, txt, …
        ROOT/…/EPISODE/FEATURE.npy            the whole episode, time first: float32 [T, 32]
        ROOT/…/EPISODE/FEATURE.txt            one row per frame: numbers in txt, csv or tsv
        ROOT/…/EPISODE/K.txt                  the camera, for the metadata
        ROOT/…/EPISODE/metadata.json          a JSON object, optional
        ROOT/…/EPISODE/000000_rgb.png, 000000_depth.npy     features `rgb` and `depth` in one folder

    Episodes may be at any depth; the key is the path below `root`. Frames are in the order of the
    numbers in their file names. All features of an episode have the same frames, except `sparse`
    ones, which may lack some.

    An npy file beside feature folders contains a whole episode, unless its name has a number. The
    same applies to npz files, whose arrays are features. Files of one feature whose names differ by
    more than numbers are an error.

    Text tables are float64 [columns]; integer columns that float64 cannot represent become int64
    features. Text files of one frame are float64 [R, C]. Tables and npz arrays with another number
    of rows than frames are not packed; `account()` lists them. `camera` in the metadata comes from
    `K.txt`, `intrinsics.txt` or similar (fx, fy, cx, cy or a camera matrix) if there is one such
    file and all images have the same size.

    The feature `frame_number` is the number in the file names, or the frame's index without
    numbers. `files` in the metadata maps each feature to a path pattern below the episode's folder:
    `files["rgb"].format(number)`. If numbers are not enough, there is a feature `frame_name` too.
    `timestamp`, int64 in nanoseconds, is the time in the file names, if all names of the folder are
    times: a decimal point means seconds; 10, 13, 16 or 19 digits mean s, ms, us or ns, if all dates
    are from 2000 to 2099. The inventory names the unit.

    Points in PLY, PCD and `.bin` files are [?, columns] with the dtype of `x`; columns of another
    dtype are a feature of their own, `points.ring` [?] or `points.uint8` [?, columns].

    Images are uint8 or uint16, [H, W] (grayscale), [H, W, 3] RGB or [H, W, 4] RGBA. A palette gives
    colours, or its indices [H, W] in a feature of masks or labels by its name; the inventory says
    which. `.flo`, `.dpt`, PFM and OpenEXR files are floating-point, see docs/reference/sources.md.
    The dtype comes from the first episode with the feature. A dimension that differs between the
    first frames of two episodes is variable. Episodes written by `export.to_files` are described by
    their `seqrecord.json`.

    The source is a snapshot: its schema is determined once and pickled with it.

    Args:
        root: folder of episodes.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        sparse: features that may lack frames, as a list or comma-separated text.
        allow_gaps: accept gaps in frame numbers. Numbers with a constant step, and times, have no
            gaps.
        in_place: reference images instead of copying them; also grayscale and RGBA images, and npy
            files of one frame.
        columns: names of the float32 columns in `.bin` files, as a list or comma-separated text.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.

    Example:
        from seqrecord.export import to_files
        from seqrecord.sources import FolderSource

        to_files("records/", None, "folders/")
        source = FolderSource("folders/")
        print(list(source.schema()), len(source.episodes()))
    """

    columns: Sequence[str] | None = None

    unpickled = ("_found_episodes", "_rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", tuple(self.columns.split(",")))

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the folders of files that frames may reference, see `external_folders`."""
        referable_names = referable_features(self.schema())
        folders = {
            episode.path / folder.folder
            for episode in self._episodes
            for name, folder in episode.folders.items()
            if name in referable_names
        }
        return external_folders(self.path, sorted(folders))

    def copied_files(self) -> dict[str, ExternalFile]:
        """Return all files except referenced ones: an index copies values from them."""
        referable_names = referable_features(self.schema())
        referenced_files = {
            path
            for episode in self._episodes
            for path in files_of(episode.path, referable_names, self.sparse)
        }
        paths = (path for episode in self._episodes for path in find_files(episode.path, is_file))
        copied_paths = (p for p in paths if p not in referenced_files and not is_document(p.name))
        return external_files(self.path, copied_paths)

    def account(self) -> Account:
        """Report places of features, files that are not packed with reasons, and assumptions."""
        episode_files = [
            EpisodeFiles(episode, self._rows[episode.path], camera_of(episode, self.exif)[1])
            for episode in self._episodes
        ]
        names, notes = self.schema().keys(), self.scan_result.notes
        return account_of(
            self.path, episode_files, names, notes, are_chosen=self.features is not None
        )

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            yield from read_frames(
                *(self._folder(info.key), self.schema()),
                sparse=self.sparse,
                allow_gaps=self.allow_gaps,
                in_place=self.in_place,
                exif=self.exif,
                columns=self.columns,
                described=self._described,
            )

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64] | None:
        """Return the frames' times in seconds since the first one, float64 [T]; see `read_times`.

        `None` if the names of the selected features' files are no times.
        """
        with located(SourceError, episode=info.key):
            return read_times(self._folder(info.key), self.schema(), self.sparse)

    def exists(self) -> bool:
        """Return whether there is an episode below `root`."""
        return bool(self._found_episodes)

    @cached_property
    def _found_episodes(self) -> list[EpisodeFolder]:
        return find_episodes(self.path, self.sparse)

    @cached_property
    def _described(self) -> set[str]:
        """Features of the exported episodes, filled by `scan`."""
        return set()

    @cached_property
    def _rows(self) -> dict[Path, RowFiles]:
        """Row files by episode folder, without values; none of exported and broken episodes."""
        rows_by_episode = {episode.path: RowFiles(0) for episode in self._episodes}
        for episode in self._plain:
            with skipping_unreadable():
                used_names = {*episode.folders, *episode.arrays}
                num_frames = self._num_frames(episode)
                row_files = find_rows(episode.path, episode.rows, used_names, num_frames)
                for name, rows in row_files.features.items():
                    row_files.features[name] = replace(rows, values=None)
                rows_by_episode[episode.path] = row_files
        return rows_by_episode

    @property
    def _episodes(self) -> list[EpisodeFolder]:
        if not self.exists():
            raise SourceError(
                "no episode found",
                file=str(self.root),
                expected="folders with FEATURE/000000.png (or another image, npy, npz, flo, exr), "
                "or with FEATURE.npy",
            )
        return self._found_episodes

    @property
    def _plain(self) -> list[EpisodeFolder]:
        """Episodes that are not exported."""
        return [episode for episode in self._episodes if not episode.is_exported]

    def scan(self, scan: Scan) -> None:
        """Find the features of all episodes; exported ones come first, the others by name."""
        specs: dict[str, FeatureSpec] = {}
        errors: defaultdict[str, FirstError] = defaultdict(FirstError)  # by feature; "": episodes
        exported_specs: dict[str, FeatureSpec] = {}
        for episode in self._episodes:
            key, exported_features = self._key(episode.path), dict[str, ExportedFeature]()
            with errors[""].skipped(episode=key):
                offered = {*(*episode.folders, *episode.arrays, *self._rows[episode.path].features)}
                if episode.is_exported:
                    exported_features = read_description(episode.path).by_name
                    self._described.update(exported_features)
                    offered = {*exported_features}
                selected_names = filter(self._wants, exported_features)
                exported_specs |= {name: exported_features[name].spec for name in selected_names}
                scan.offered |= dict.fromkeys(offered)
                for name in filter(self._wants, offered):
                    with errors[name].skipped(episode=key, feature=name):
                        exported = exported_features.get(name)
                        if exported is None:
                            spec = self._from_first_file(episode, name)
                        elif (folder := episode.folders.get(exported.path)) is not None:
                            codec = self._codec(episode.path / folder.first, folder)
                            spec = replace(exported.spec, codec=codec)
                        else:
                            continue  # no file tells a codec
                        specs[name] = merge_specs(specs.get(name, spec), spec)
        specs = {**exported_specs, **specs}
        for name in sorted(errors.keys() - specs.keys()):
            if (error := errors[name].first) is not None:
                if not specs:
                    raise error
                if name:
                    with self.unless_unreadable(name):
                        raise error
        all_specs = {s.name: s for s in self._name_specs() if s.name not in scan.offered} | specs
        names = [*exported_specs, *sorted(all_specs.keys() - exported_specs.keys())]
        scan.specs += map(all_specs.__getitem__, names)
        scan.offered |= dict.fromkeys(names)
        for name in {*(self.features or ())} - scan.offered.keys():
            self._check_rows(name)
        scan.episodes += map(partial(self._info, names=names), self._episodes)
        scan.notes += self._notes(specs)

    def _wants(self, name: str) -> bool:
        return self.features is None or name in self.features

    def _check_rows(self, name: str) -> None:
        """Raise `SourceError` if a row file of this name is not a feature."""
        for episode in self._episodes:
            for place, reason in self._rows[episode.path].reasons.items():
                file, _, member = place.partition(": ")
                if name in (member, feature_name(Path(file).with_suffix("").as_posix())):
                    raise SourceError(
                        "the feature does not have one row per frame",
                        file=str(episode.path / file),
                        episode=self._key(episode.path),
                        feature=name,
                        got=reason,
                    )

    def _notes(self, specs: Mapping[str, FeatureSpec]) -> list[str]:
        """Return assumptions about names and encodings, which are also logged."""
        plain = self._plain
        first_folders = (folder for episode in plain for folder in self._dense(episode)[:1])
        units = Counter(folder.files.times.unit for folder in first_folders if folder.files.times)
        total = counted(len(plain), "episode")
        notes = [f"{time_note(unit)} ({count} of {total})" for unit, count in units.items()]
        notes += encoding_notes(specs, plain)
        for note in notes:
            _logger.warning("%s: %s", self.path, note)
        return notes

    def _from_first_file(self, episode: EpisodeFolder, name: str) -> FeatureSpec:
        """Return the feature as declared by the header of this episode's first file."""
        codec = _DECODED
        meaning: Mapping[str, str | None] = {}
        shape: Sequence[int | None]
        if (rows := self._rows[episode.path].features.get(name)) is not None:
            path, dtype, shape = episode.path / rows.file, rows.dtype, rows.shape
        elif (folder := episode.folders.get(name)) is None:
            path = episode.path / episode.arrays[name]
            header = array_header(path)
            check_time_axis(header.shape, path)
            dtype, shape = header.dtype, header.shape[1:]
        else:
            path = episode.path / folder.first
            meaning = known_meaning(folder.files.pattern, path.name)
            codec = self._codec(path, folder)
            if ending_of(path.name) in IMAGE_ENDINGS:
                kind = meaning.get("kind")
                image = form_of(image_header(path), name, kind, path, self.palettes)
                if image.needs_imagecodecs:
                    load_imagecodecs(path)
                dtype, shape = image.dtype, shape_of(image, self.exif, is_kept=bool(codec))
            elif ending_of(path.name) in POINT_ENDINGS:
                points = read_points(path, self.columns)[folder.member or ""].values
                dtype, shape, meaning = points.dtype, (None, *points.shape[1:]), {"kind": "points"}
            elif is_text_name(path.name):
                dtype, shape = np.dtype("<f8"), frames_shape(files_like(path))
            else:
                are_arrays = folder.files.endings <= {".npy", NPZ}
                files = files_like(path) if are_arrays else [path]
                dtype, shape = arrays_form(files, folder.member)
        meaning = {"kind": kind_of_values(name, dtype, shape), **meaning}
        return feature_spec(name, dtype, shape, path, codec=codec, **meaning)

    def _codec(self, path: Path, folder: FeatureFolder) -> tuple[CodecConfig, ...]:
        """Return the codec that keeps images like the one at `path`, if it shall and can."""
        endings = folder.files.endings
        if self.in_place:
            return referable_codec(path, endings, self.exif)
        if self.keep_encoded and endings <= IMAGE_ENDINGS:
            return passthrough_codec(image_header(path), endings, exif=self.exif)
        return _DECODED

    def _name_specs(self) -> list[FeatureSpec]:
        """Return the specs of file name features, unless all episodes are exported."""
        first_folders = [folder for episode in self._plain for folder in self._dense(episode)[:1]]
        are_named = any(folder.files.pattern is None for folder in first_folders)
        are_times = any(folder.files.times for folder in first_folders)
        specs = name_specs(self.path, are_named=are_named, are_times=are_times)
        return specs if self._plain else []

    def _dense(self, episode: EpisodeFolder) -> list[FeatureFolder]:
        """Return the feature folders with all frames of an episode, selected ones first."""
        names = [name for name in episode.folders if name not in self.sparse]
        names.sort(key=lambda name: self.features is not None and name not in self.features)
        return [episode.folders[name] for name in names]

    def _key(self, path: Path) -> str:
        return key_of(path, self.path, ending=True)

    def _folder(self, key: str) -> Path:
        root = self.path
        if not {"", "..", "/"}.intersection((key, *Path(key).parts)):
            for path in (root / key, root):
                if is_directory(path) and self._key(path) == key:
                    return path
        raise SourceError("no such episode", file=str(root), got=key)

    def _info(self, episode: EpisodeFolder, names: Collection[str]) -> EpisodeInfo:
        metadata: dict[str, Any] = {}
        num_frames, fps, split = 0, None, None
        with skipping_unreadable():  # raised by `frames`
            if episode.is_exported:
                description = read_description(episode.path)
                num_frames, fps, split = len(description.frames), description.fps, description.split
            else:  # `frames` checks that all features have as many
                num_frames = self._num_frames(episode) or self._rows[episode.path].num_frames
                metadata = _file_metadata(episode, num_frames, names, self.sparse)
                metadata |= self._text_metadata(episode, names)
            if episode.has_metadata:
                metadata |= read_metadata(episode.path / METADATA)
        return EpisodeInfo(self._key(episode.path), num_frames, metadata, fps, split)

    def _text_metadata(self, episode: EpisodeFolder, names: Collection[str]) -> dict[str, Any]:
        """Return the camera and the column names of tables, for the metadata."""
        camera, _ = camera_of(episode, self.exif)
        metadata: dict[str, Any] = {} if camera is None else {"camera": camera}
        columns = {**self._rows[episode.path].columns}
        for name, folder in episode.folders.items():
            if ending_of(folder.first) in POINT_ENDINGS:
                with skipping_unreadable():  # raised by `frames`
                    points = read_points(episode.path / folder.first, self.columns)
                    columns[name] = list(points[folder.member or ""].names)
        selected_columns = {name: columns[name] for name in sorted(columns.keys() & names)}
        return {**metadata, "columns": selected_columns} if selected_columns else metadata

    def _num_frames(self, episode: EpisodeFolder) -> int | None:
        """Return the number of frames from files or an npy array; `None` without both."""
        for folder in self._dense(episode):
            return folder.files.num_frames
        for file in episode.arrays.values():
            shape = array_header(episode.path / file).shape
            check_time_axis(shape, episode.path / file)
            return shape[0]
        return None


FORMAT = SourceFormat(
    "folders",
    "any EPISODE/FEATURE/000000.png (or another image, npy, npz, flo, exr), or EPISODE/FEATURE.npy",
    FolderSource,
    options=("sparse", "allow_gaps", "columns", "exif"),
    is_fallback=True,
    takes_urls=True,
)


def _file_metadata(
    episode: EpisodeFolder, num_frames: int, names: Collection[str], sparse: Collection[str]
) -> dict[str, Any]:
    """Return file patterns and counts of missing frames, for the metadata."""
    selected_folders = {n: episode.folders[n] for n in sorted(episode.folders.keys() & names)}
    files = {
        name: folder.path_of_number
        for name, folder in selected_folders.items()
        if folder.files.pattern
    }
    missing_counts = {
        f"frames_without_{name}": num_frames - selected_folders[name].files.num_frames
        for name in sparse
        if name in selected_folders
    }
    return {"files": files, **missing_counts} if files else missing_counts
