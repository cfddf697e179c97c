"""Pushes a dataset to the Hugging Face Hub: all of its files in one commit, with a dataset card.

::

    README.md           the card: what the dataset holds, and how to read it
    manifest.json, …    the dataset, by the paths that it has on the disk

`create_commit` of huggingface_hub sends files in LFS before the commit that names them. So nothing
is sent again after an interruption, and no reader sees a part of a dataset.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from seqrecord.errors import (
    ConflictError,
    DestinationError,
    FormatError,
    LocationError,
    NotFoundError,
    StorageError,
)
from seqrecord.format.footer import RECORDS
from seqrecord.format.manifest import (
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
from seqrecord.format.references import EXTERNALS
from seqrecord.indexing.opening import opened
from seqrecord.reading.dataset import DatasetLike
from seqrecord.reading.summary import Summary, summarize
from seqrecord.storage import Storage, map_files, open_storage, parse_location
from seqrecord.storage.objects.hub import hub_branch
from seqrecord.storage.objects.hub_api import Hub
from seqrecord.storage.url import without_commit
from seqrecord.text import counted, printable, shape_text
from seqrecord.units import format_size

_CARD = "README.md"
_MAX_CARD_BYTES = 16 << 20
_MARK = "<!-- seqrecord push {} -->\n"  # with the hash of the card above it
_MARKED = re.compile(r"(.*)<!-- seqrecord push ([0-9a-f]{16}) -->\s*", re.DOTALL)

_Originals: TypeAlias = "str | dict[str, str] | None"


@dataclass(frozen=True)
class HubPush:
    """What a push did.

    `url` has the commit. `sent` are the paths of the files that it adds or replaces, together
    `sent_bytes`, and `removed` those that it removes; without any, no commit was made.
    `is_card_kept` says that the `README.md` there is somebody else's, and stays as it is.
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
    tag: str | None = None,
    message: str | None = None,
    license: str | None = None,  # noqa: A002 - as the Hub calls it
    replace: bool = False,
    replace_card: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> HubPush:
    """Push a dataset to the Hub, where `url` then is the dataset.

    A repository or a branch that is not there is made. All files come in one commit: readers see
    the dataset that was there before, or this one. One that has grown since it was pushed sends its
    new files alone. Files that it has no more leave the branch, and stay in its earlier commits;
    other files of the repository are left as they are. Earlier versions are not pushed. Of an
    original on a URL, or an index of one, the index is pushed.

    The commit has a dataset card, `README.md`: features, sizes, and how to read the dataset. A card
    that a push did not write, or that somebody has changed since, is left as it is.

    Args:
        dataset: a path of this machine, the URL of an original, or an open dataset of either.
        url: `hf://datasets/ORG/NAME`, or `hf://datasets/ORG/NAME@BRANCH`.
        private: make a private repository. One that is there must be private already.
        tag: a name for the commit, for readers of `hf://datasets/ORG/NAME@TAG`.
        message: of the commit.
        license: for the card, by the Hub's identifiers, such as `cc-by-4.0`. By default that of
            the card that a push wrote before.
        replace: push also where another dataset is, or a later version of this one.
        replace_card: write a new card in the place of any other.
        storage_options: `token` and `endpoint`, which the environment has by default.

    Raises, before anything is sent, `DestinationError` for an index of files of this machine, and
    for a public repository that is to be private; `ConflictError` where
    another dataset is, a later version, or another commit of that tag; `LocationError` for any
    other URL, and a dataset elsewhere; `AccessError` for a token that may not do this. Later,
    `ConflictError` where somebody else commits meanwhile, and `StorageError` where the Hub leaves
    files out of the commit, as a `.gitignore` there may want it.
    """
    hub = hub_branch(url, storage_options)
    shown = parse_location(url).shown.rstrip("/")

    def at(commit: str) -> Storage:
        return open_storage(f"hf://datasets/{hub.repo}@{commit}", storage_options)

    with opened(dataset) as reader:
        storage, summary = reader.contents.storage, summarize(reader)
        originals = _originals(summary)
        manifest, files = _files(storage, reader.contents.manifest.commit, originals is not None)
        parent = _prepared(hub, private=private)
        tagged = None if tag is None else _commit_of(hub, tag)
        with closing(at(parent)) as there:
            known, removed = _known(there, manifest, files, replace=replace)
            card = _new_card(there, shown, summary, originals, license, is_forced=replace_card)
        if card:
            files[_CARD] = card
        sent = {path: file for path, file in files.items() if path not in known}
        if tagged is not None and (sent or removed or tagged != parent):
            raise ConflictError("this tag is another commit's already", file=shown, got=tag)
        commit = parent
        if sent or removed:
            message = message or f"Push {_content(manifest)}"
            commit = _pushed(
                hub, parent, sent, removed, message, partial(_is_version, at, manifest)
            )
            with closing(at(commit)) as there:
                _check_whole(there, files)
        if tag is not None and tagged is None:
            _put_tag(hub, tag, commit)
    return HubPush(
        f"hf://datasets/{hub.repo}@{commit}",
        tuple(sorted(sent)),
        sum(map(_size, sent.values())),
        tuple(sorted(removed)),
        card is None,
    )


def _content(about: Manifest | Summary) -> str:
    episodes, frames = about.num_episodes, about.num_frames
    return f"{counted(episodes, 'episode')}, {counted(frames, 'frame')}"


def _originals(summary: Summary) -> _Originals:
    """`originals=` for readers of an index elsewhere; `None` of a dataset without external files.

    `DestinationError` for files of this machine.
    """
    roots = summary.originals
    if any("://" not in root for root in roots):
        raise DestinationError(
            "an index of files of this machine, which others don't have; push a dataset that has "
            "them itself: `seqrecord write --src INDEX --dst DST`",
            file=summary.url,
            expected="originals on a URL",
            got=", ".join(roots),
        )
    places: dict[str, str] = {}
    for root in roots:
        bare = without_commit(root)
        places[bare] = bare if bare in places else root  # of several commits none
    return places if len(places) > 1 else next(iter(places.values()), None)


def _files(
    storage: Storage, version: str, has_externals: bool
) -> tuple[Manifest, dict[str, Path | bytes]]:
    """The manifest of a version, and what the dataset consists of, by the paths in it."""
    if parse_location(storage.url).protocol != "file":
        raise LocationError(
            "a dataset is pushed from this machine; copy it here first",
            expected="a local path",
            got=storage.url,
        )
    data, _ = read_tagged(storage)
    manifest = parse_manifest(storage, data)
    if manifest.commit != version:
        raise ConflictError("not the dataset as it is now", file=storage.url)
    sizes = {file.path: file.size for file in _named(manifest)}
    if has_externals:
        sizes |= {file.path: file.size for file in storage.files(EXTERNALS)}
    for path, size in map_files(storage, storage.size, sizes).items():
        if size != sizes[path]:
            raise FormatError(
                "a file of another length than the manifest says",
                file=f"{storage.url}/{path}",
                expected=sizes[path],
                got=size,
            )
    return manifest, {**{path: Path(storage.url, path) for path in sizes}, MANIFEST: data}


def _size(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _prepared(hub: Hub, *, private: bool) -> str:
    """The commit of the branch, after repository and branch were made where there was none."""
    hub.retried(partial(hub.change, "create_repo", private=private, exist_ok=True))
    hub.retried(partial(hub.change, "create_branch", branch=hub.revision, exist_ok=True))
    commit, is_private = hub.head()
    if private and not is_private:
        raise DestinationError(
            "this repository is public; make it private on its page, or push to another one",
            file=hub.shown(""),
        )
    return commit


def _commit_of(hub: Hub, tag: str) -> str | None:
    try:
        return hub.head(tag)[0]
    except NotFoundError:
        return None


def _known(
    there: Storage, manifest: Manifest, files: Collection[str], *, replace: bool
) -> tuple[set[str], list[str]]:
    """Of the paths of the files those that are there already, and those to remove there."""
    try:
        before = read_manifest(there)
    except NotFoundError:
        return set(), []
    if not replace and before.commit not in (manifest.commit, *manifest.earlier_commits):
        raise ConflictError(
            "another dataset is there, or a later version of this one; push to another branch, or "
            "replace it (--replace)",
            file=there.url,
            expected=f"a version before {manifest.commit}",
            got=before.commit,
        )
    sizes = _sizes(there)
    old, new = _named(before), _named(manifest)
    same = {file.path for file in old & new if sizes.get(file.path) == file.size}
    same |= {path for path in files if path.startswith(f"{EXTERNALS}/") and path in sizes}
    if before.commit == manifest.commit:
        same.add(MANIFEST)
    gone = {file.path for file in old} - {file.path for file in new}
    return same, sorted(gone & sizes.keys())


def _named(manifest: Manifest) -> set[RecordFile | IndexFile]:
    """The files of a dataset, each with what tells it from any other of the same path."""
    return {*manifest.record_files, *manifest.small_files}


def _sizes(there: Storage) -> dict[str, int]:
    folders = RECORDS, INDEX, EDITS, EXTERNALS
    return {file.path: file.size for folder in folders for file in there.files(folder)}


def _new_card(
    there: Storage,
    url: str,
    summary: Summary,
    originals: _Originals,
    license: str | None,  # noqa: A002
    *,
    is_forced: bool,
) -> bytes | None:
    """The card; empty if it is there as it is, `None` if another one is to stay."""
    try:
        data, _ = there.read_whole(_CARD, _MAX_CARD_BYTES)
    except NotFoundError:
        data, is_ours = b"", True
    else:
        found = _MARKED.fullmatch(data.decode(errors="replace"))
        is_ours = found is not None and found[2] == _hash(found[1])
    if not is_ours and not is_forced:
        return None
    chosen = license
    if chosen is None and is_ours and data:
        chosen = _hub_module().DatasetCard(data.decode()).data.license
    card = _card(url, summary, originals, chosen).encode()
    return b"" if card == data else card


def _card(url: str, summary: Summary, originals: _Originals, license: str | None) -> str:  # noqa: A002
    # Without a viewer, which would take tables of the index for the data.
    data = _hub_module().DatasetCardData(license=license, tags=["seqrecord"], viewer=False)
    rows = [("feature", "dtype", "shape", "unit", "frames", "size"), ("---",) * 6]
    for each in summary.features:
        spec = each.spec
        is_array = spec.value == "array"
        rows.append(
            (
                f"`{spec.name}`",
                spec.dtype.name if is_array else spec.value,
                shape_text(spec.shape) if is_array else "",
                printable(spec.unit or "").replace("|", "\\|"),
                f"{each.num_frames:,}",
                format_size(each.stored_bytes),
            )
        )
    refers, where = "", json.dumps(url)
    if originals is not None:
        places = [originals] if isinstance(originals, str) else originals.values()
        refers = f", with video or images in {', '.join(f'`{place}`' for place in places)}"
        where += f", originals={json.dumps(originals)}"
    held = f"{_content(summary)}, {format_size(summary.record_bytes + summary.external_bytes)}"
    lines = [
        *("---", data.to_yaml(), "---", "", f"# {url.partition('://datasets/')[2]}", ""),
        *(f"{held}{refers}.", "", *(f"| {' | '.join(row)} |" for row in rows), ""),
        *("```python", "import seqrecord", "", f"dataset = seqrecord.open({where})", "```", "", ""),
    ]
    text = "\n".join(lines)
    return text + _MARK.format(_hash(text))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hub_module() -> Any:
    return importlib.import_module("huggingface_hub")  # which `hub_branch` has looked for


def _pushed(
    hub: Hub,
    parent: str,
    sent: Mapping[str, Path | bytes],
    removed: Collection[str],
    message: str,
    is_ours: Callable[[str], bool],
) -> str:
    """The commit that was made after `parent`; `ConflictError` where another was made."""
    module = _hub_module()
    operations = [module.CommitOperationAdd(path, file) for path, file in sorted(sent.items())]
    operations += [module.CommitOperationDelete(path) for path in removed]
    about = {"commit_message": message, "revision": hub.revision, "parent_commit": parent}

    def commit() -> str:
        try:
            return str(hub.change("create_commit", operations=operations, **about).oid)
        except StorageError:
            if (now := hub.head()[0]) == parent:
                raise
            if not is_ours(now):
                raise ConflictError(
                    "somebody else has committed there meanwhile", file=hub.shown("")
                ) from None
            return now  # and the answer was lost

    return hub.retried(commit)


def _is_version(at: Callable[[str], Storage], manifest: Manifest, commit: str) -> bool:
    """Whether a version of the dataset is what a commit has."""
    with closing(at(commit)) as there, suppress(NotFoundError):
        return read_manifest(there).commit == manifest.commit
    return False


def _check_whole(there: Storage, files: Mapping[str, Path | bytes]) -> None:
    sizes = _sizes(there)
    lacking = [path for path in files if "/" in path and path not in sizes]
    if lacking:
        raise StorageError(
            "the commit lacks files of the dataset: look for a .gitignore in the repository",
            file=there.url,
            expected=lacking[0],
        )


def _put_tag(hub: Hub, tag: str, commit: str) -> None:
    hub.retried(partial(hub.change, "create_tag", tag=tag, revision=commit, exist_ok=True))
    if _commit_of(hub, tag) != commit:
        raise ConflictError(
            "somebody else has made this tag meanwhile", file=hub.shown(""), got=tag
        )
