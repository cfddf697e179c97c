"""The warning of a mix that fills missing features with zeros, or has one source per batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from torch.utils.data import get_worker_info

from seqrecord.loader.mixing.batches import MixedBatches
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.view import View
from seqrecord.store.feature_kinds import is_image, known_kind
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import first_of

_MOST_ROWS = 9  # under the first line
_MOST_NAMES = 5  # in a row


def warn_of_form(
    batches: Iterable[MixedBatches], shares: Mapping[str, Fraction], differing: Mapping[str, str]
) -> None:
    """Log one warning, in the training process of rank 0, if there is something to report.

    Args:
        batches: the forms of batches.
        shares: the share of each source.
        differing: features whose shapes turn batches into batches of one source, with the shapes.
    """
    if get_worker_info() is not None:
        return
    head = 'a mix fills features that a source lacks with 0; rename= or features="intersection"'
    rows = [f"{name}: {shapes}" for name, shapes in differing.items()]
    if rows:  # then nothing is filled
        head = (
            "each batch of a mix has a single source, because features differ in shape; vectors= "
        )
        head += "for vectors, resize= for images, or single_source_batches=True"
    for form in batches:
        lacking: dict[int, list[str]] = defaultdict(list)
        for name, numbers in form.missing.items():
            spec = form.specs.get(name)
            if spec is None or spec.value_kind.number_dtype(spec) is not None:
                for number in numbers:
                    lacking[number].append(name)
        for number, names in lacking.items():
            name, shown = form.names[number], first_of(names, _MOST_NAMES)
            row = f"{name} ({float(shares[name]):.0%} of clips) lacks {shown}"
            similar = _alike(form.loaders[number].view, names, form)
            rows.append(row + f"; it has {first_of(similar, _MOST_NAMES)}" * bool(similar))
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS - 1 :] = [f"… {len(rows) - _MOST_ROWS + 1} more"]
    if rows:
        warn_once("\n  ".join([head, *rows]))


def _alike(view: View, names: Sequence[str], batches: MixedBatches) -> list[str]:
    """Features of a source with the kind of missing ones, which are unread or in no other source.

    Often they have another name for the same camera.
    """
    dataset = view.dataset
    read = {dataset.contents.stored_name(name): name for name in dataset.features}
    kinds = set()
    for loader in batches.loaders.values():
        features = loader.view.dataset.features
        kinds |= {_kind(name, features[name]) for name in names if name in features}
    return [
        read.get(name, name)
        for name, spec in dataset.schema.active.items()
        if (name not in read or read[name] in batches.missing) and _kind(name, spec) in kinds
    ]


def _kind(name: str, spec: FeatureSpec) -> str:
    kind = known_kind(name, spec, spec.kind)
    return "image" if is_image(spec, kind) else kind or f"{spec.dtype.kind}{len(spec.shape)}"
