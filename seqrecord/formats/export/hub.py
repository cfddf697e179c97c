"""Pushes a dataset to the Hugging Face Hub: all files in one commit, with a dataset card.

::

    README.md           the card: content of the dataset, code for reading it
    manifest.json, …    the dataset, by its paths on disk

`create_commit` of huggingface_hub uploads large files before the commit. So an interrupted push
does not send them again, and readers never see a part of a dataset.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from seqrecord.cloud.objects.hub import hub_branch
from seqrecord.cloud.objects.hub_api import Hub
from seqrecord.errors import (
    ConflictError,
    DestinationError,
    FormatError,
    LocationError,
    NotFoundError,
    StorageError,
)
from seqrecord.store.format.footer import RECORDS
from seqrecord.store.format.manifest import (
    DICTIONARIES,
    EDITS,
    INDEX,
    MANIFEST,
    IndexFile,
    Manifest,
    RecordFile,
    parse_manifest,
    read_manifest,
    read_tagged,
)
from seqrecord.store.format.references import EXTERNALS
from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.reading.opening import opened
from seqrecord.store.reading.summary import Summary, summarize
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.parallel import map_files
from seqrecord.store.storage.url import parse_location, without_commit
from seqrecord.store.text import counted, printable
from seqrecord.store.units import format_size

_CARD = "README.md"
_MAX_CARD_BYTES = 16 << 20
_MARK = "<!-- seqrecord push {} -->\n"  # with the digest of the card above it
_MARKED = re.compile(r"(.*)<!-- seqrecord push ([0-9a-f]{16}) -->\s*", re.DOTALL)

_Originals: TypeAlias = "str | dict[str, str] | None"


@dataclass(frozen=True)
class HubPush:
    """Result of a push.

    `url` names the commit. `sent` are the paths of added or replaced files, with `sent_bytes` in
    total, and `removed` the removed ones; if both are empty, no commit was made. With
    `is_card_kept`, `README.md` was written by somebody else and is unchanged.
    """

    url: str
    sent: tuple[str, ...]
    sent_bytes: int
    removed: tuple[str, ...]
    is_card_kept: bool


def to_hub(
    dataset: DatasetLike,
    url: str,
    *,
    private: bool = False,
    license: str | None = None,  # noqa: A002 - as the Hub calls it
    replace: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> HubPush:
    """Push a dataset to a dataset repository on the Hub.

    Missing repositories and branches are created. One commit contains all files, so readers see the
    old dataset or the new one. If the dataset grew after an earlier push, only new files are sent.
    Files that left the dataset are removed from the branch, but remain in its history; other files
    in the repository are not changed. Earlier versions of the dataset are not pushed. For an
    original on a URL, or an index of one, the index is pushed.

    The commit includes a dataset card, `README.md`: features, sizes, and code for reading. A card
    that somebody else wrote or edited is kept; remove it to get a new one.

    Args:
        dataset: a local path, the URL of an original, or an open dataset of either.
        url: `hf://datasets/ORG/NAME`, or `hf://datasets/ORG/NAME@BRANCH`.
        private: create a private repository. An existing one must be private already.
        license: for the card, by the Hub's identifiers such as `cc-by-4.0`; by default the
            license of the previous card.
        replace: also replace a different dataset, or a later version of this one.
        storage_options: `token` and `endpoint`, by default from the environment.

    Raises before sending: `DestinationError` for an index of local files and for a public
    repository with `private`; `ConflictError` if the branch has another dataset or a later version;
    `LocationError` for any other URL, and for a dataset that is not local; `AccessError` for a
    token without permission. Raises afterwards: `ConflictError` if somebody else commits meanwhile,
    and `StorageError` if the commit lacks files, for example because of a `.gitignore`.

    Example (needs a token of the Hub)::

        export.to_hub("records/", "hf://datasets/ORG/NAME", license="cc-by-4.0")
    """
    hub = hub_branch(url, storage_options)
    shown = parse_location(url).shown.rstrip("/")

    def open_commit(commit: str) -> Storage:
        return open_storage(f"hf://datasets/{hub.repo}@{commit}", storage_options)

    with opened(dataset) as reader:
        reader.contents.bad.check()
        storage, summary = reader.contents.storage, summarize(reader)
        originals = _originals(summary)
        manifest, files = _files(storage, reader.contents.manifest.commit, originals is not None)
        parent = _prepare_branch(hub, private=private)
        with closing(open_commit(parent)) as remote:
            pushed_paths, removed = _compare_branch(remote, manifest, files, replace=replace)
            card = _new_card(remote, shown, summary, originals, license)
        if card:
            files[_CARD] = card
        sent = {path: file for path, file in files.items() if path not in pushed_paths}
        commit = parent
        if sent or removed:
            is_ours = partial(_is_version, open_commit, manifest)
            commit = _push(hub, parent, sent, removed, f"Push {_content(manifest)}", is_ours)
            with closing(open_commit(commit)) as remote:
                _check_whole(remote, files)
    return HubPush(
        f"hf://datasets/{hub.repo}@{commit}",
        tuple(sorted(sent)),
        sum(map(_size, sent.values())),
        tuple(sorted(removed)),
        card is None,
    )


def _content(summary: Manifest | Summary) -> str:
    episodes, frames = summary.num_episodes, summary.num_frames
    return f"{counted(episodes, 'episode')}, {counted(frames, 'frame')}"


def _originals(summary: Summary) -> _Originals:
    """`originals=` for readers of an index; `None` for a dataset without external files.

    Raises `DestinationError` for local files.
    """
    roots = summary.originals
    if any("://" not in root for root in roots):
        raise DestinationError(
            "index of local files, which others do not have; pack the files and push that: "
            "`seqrecord write --src INDEX --dst DST`",
            file=summary.url,
            expected="originals on a URL",
            got=", ".join(roots),
        )
    places: dict[str, str] = {}
    for root in roots:
        bare_root = without_commit(root)
        # No commit if there are several.
        places[bare_root] = bare_root if bare_root in places else root
    return places if len(places) > 1 else next(iter(places.values()), None)


def _files(
    storage: Storage, version: str | None, has_externals: bool
) -> tuple[Manifest, dict[str, Path | bytes]]:
    """Manifest of a version, or of any, and the dataset's files by path."""
    if parse_location(storage.url).protocol != "file":
        raise LocationError(
            "can only push a local dataset; copy it here first",
            expected="a local path",
            got=storage.url,
        )
    data, _ = read_tagged(storage)
    manifest = parse_manifest(storage, data)
    if version not in (None, manifest.commit):
        raise ConflictError("dataset changed meanwhile; open it again", file=storage.url)
    sizes = {file.path: file.size for file in _dataset_files(manifest)}
    if has_externals:
        sizes |= {file.path: file.size for file in storage.files(EXTERNALS)}
    for path, size in map_files(storage, storage.size, sizes).items():
        if size != sizes[path]:
            raise FormatError(
                "file length differs from the manifest",
                file=f"{storage.url}/{path}",
                expected=sizes[path],
                got=size,
            )
    files: dict[str, Path | bytes] = {path: Path(storage.url, path) for path in sizes}
    for dictionary in manifest.dictionaries:
        _, files_of_texts = _files(in_folder(storage, dictionary.folder), None, False)
        files |= {f"{dictionary.folder}/{path}": file for path, file in files_of_texts.items()}
    return manifest, {**files, MANIFEST: data}


def _size(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _prepare_branch(hub: Hub, *, private: bool) -> str:
    """Create repository and branch if needed; returns the branch's commit."""
    hub.retried(partial(hub.change, "create_repo", private=private, exist_ok=True))
    hub.retried(partial(hub.change, "create_branch", branch=hub.revision, exist_ok=True))
    commit, is_private = hub.head()
    if private and not is_private:
        raise DestinationError(
            "repository is public; make it private on its page, or push to another one",
            file=hub.shown(""),
        )
    return commit


def _compare_branch(
    remote: Storage, manifest: Manifest, files: Collection[str], *, replace: bool
) -> tuple[set[str], list[str]]:
    """Paths that the branch has already, and paths to remove there."""
    try:
        previous_manifest = read_manifest(remote)
    except NotFoundError:
        return set(), []
    if not replace and previous_manifest.commit not in (manifest.commit, *manifest.earlier_commits):
        raise ConflictError(
            "branch has another dataset, or a later version of this one; push to another branch, "
            "or replace it (--replace)",
            file=remote.url,
            expected=f"an ancestor of {manifest.commit}",
            got=previous_manifest.commit,
        )
    sizes = _sizes(remote, files)
    old_files, new_files = _dataset_files(previous_manifest), _dataset_files(manifest)
    unchanged_paths = {
        file.path for file in old_files & new_files if sizes.get(file.path) == file.size
    }
    unchanged_paths |= {
        path
        for path in files
        if path.startswith((f"{EXTERNALS}/", f"{DICTIONARIES}/"))
        and path in sizes
        and not path.endswith(f"/{MANIFEST}")
    }
    if previous_manifest.commit == manifest.commit:
        unchanged_paths.add(MANIFEST)
        for dictionary in manifest.dictionaries:  # new values are in new files
            own = {path for path in files if path.startswith(f"{dictionary.folder}/")}
            if own - unchanged_paths == {path := f"{dictionary.folder}/{MANIFEST}"}:
                unchanged_paths.add(path)
    removed_paths = {file.path for file in old_files} - {file.path for file in new_files}
    return unchanged_paths, sorted(removed_paths & sizes.keys())


def _dataset_files(manifest: Manifest) -> set[RecordFile | IndexFile]:
    """Files of a dataset, with sizes and checksums or ids to compare."""
    return {*manifest.record_files, *manifest.small_files}


def _sizes(remote: Storage, paths: Iterable[str]) -> dict[str, int]:
    """Sizes of the files in a dataset's folders, and in those of these paths."""
    folders_of_paths = (path.rpartition("/")[0] for path in paths if "/" in path)
    folders = dict.fromkeys((RECORDS, INDEX, EDITS, EXTERNALS, *folders_of_paths))
    return {file.path: file.size for folder in folders for file in remote.files(folder)}


def _new_card(
    remote: Storage,
    url: str,
    summary: Summary,
    originals: _Originals,
    license: str | None,  # noqa: A002
) -> bytes | None:
    """The new card; empty if unchanged, `None` if another card is kept."""
    data = b""
    with suppress(NotFoundError):
        data, _ = remote.read_whole(_CARD, _MAX_CARD_BYTES)
        card_match = _MARKED.fullmatch(data.decode(errors="replace"))
        if card_match is None or card_match[2] != _hash(card_match[1]):
            return None
        if license is None:
            license = _hub_module().DatasetCard(data.decode()).data.license  # noqa: A001
    card = _card(url, summary, originals, license).encode()
    return b"" if card == data else card


def _card(url: str, summary: Summary, originals: _Originals, license: str | None) -> str:  # noqa: A002
    # No viewer: it would show tables of the index as data.
    data = _hub_module().DatasetCardData(license=license, tags=["seqrecord"], viewer=False)
    rows = [("feature", "dtype", "shape", "unit", "frames", "size"), ("---",) * 6]
    for feature in summary.features:
        spec = feature.spec
        rows.append(
            (
                f"`{spec.name}`",
                spec.value_kind.dtype_text(spec),
                spec.value_kind.shape_text(spec),
                printable(spec.unit or "").replace("|", "\\|"),
                f"{feature.num_frames:,}",
                format_size(feature.stored_bytes),
            )
        )
    originals_text, arguments = "", json.dumps(url)
    if originals is not None:
        places = [originals] if isinstance(originals, str) else originals.values()
        originals_text = f", with video or images in {', '.join(f'`{place}`' for place in places)}"
        arguments += f", originals={json.dumps(originals)}"
    content = f"{_content(summary)}, {format_size(summary.record_bytes + summary.external_bytes)}"
    lines = [
        *("---", data.to_yaml(), "---", "", f"# {url.partition('://datasets/')[2]}", ""),
        *(f"{content}{originals_text}.", "", *(f"| {' | '.join(row)} |" for row in rows), ""),
        *(
            "```python",
            "import seqrecord",
            "",
            f"dataset = seqrecord.open({arguments})",
            "```",
            "",
            "",
        ),
    ]
    text = "\n".join(lines)
    return text + _MARK.format(_hash(text))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hub_module() -> Any:
    return importlib.import_module("huggingface_hub")  # `hub_branch` has checked for it


def _push(
    hub: Hub,
    parent: str,
    sent: Mapping[str, Path | bytes],
    removed: Collection[str],
    message: str,
    is_ours: Callable[[str], bool],
) -> str:
    """Commit on top of `parent`; raises `ConflictError` if somebody else committed."""
    module = _hub_module()
    operations = [module.CommitOperationAdd(path, file) for path, file in sorted(sent.items())]
    operations += [module.CommitOperationDelete(path) for path in removed]
    commit_options = {"commit_message": message, "revision": hub.revision, "parent_commit": parent}

    def commit() -> str:
        try:
            return str(hub.change("create_commit", operations=operations, **commit_options).oid)
        except StorageError:
            if (head_commit := hub.head()[0]) == parent:
                raise
            if not is_ours(head_commit):
                raise ConflictError(
                    "somebody else committed meanwhile", file=hub.shown("")
                ) from None
            return head_commit  # only the answer was lost

    return hub.retried(commit)


def _is_version(open_commit: Callable[[str], Storage], manifest: Manifest, commit: str) -> bool:
    """Whether a commit contains this version of the dataset."""
    with closing(open_commit(commit)) as remote, suppress(NotFoundError):
        return read_manifest(remote).commit == manifest.commit
    return False


def _check_whole(remote: Storage, files: Mapping[str, Path | bytes]) -> None:
    sizes = _sizes(remote, files)
    missing_paths = [path for path in files if "/" in path and path not in sizes]
    if missing_paths:
        raise StorageError(
            "commit lacks files of the dataset; check for a .gitignore in the repository",
            file=remote.url,
            expected=missing_paths[0],
        )
