"""Values of texts in batches of a mix, from the dictionary of each clip's source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from seqrecord.errors import ClipError
from seqrecord.loader.engine.batches import Batch
from seqrecord.loader.pipes.text_values import ValueForm, find_values, on_device
from seqrecord.loader.pipes.view import View
from seqrecord.store.reading.dictionaries import TextDictionary


def joined_texts(sources: Collection[View], join: Literal["union", "intersection"]) -> list[str]:
    """The names of values in batches."""
    counts = Counter(name for view in sources for name in view.texts.dictionaries)
    return [name for name, count in counts.items() if join == "union" or count == len(sources)]


@dataclass(frozen=True, eq=False)
class MixedValues:
    """The values of one name. Picklable.

    Attributes:
        form: their form in batches.
        text: the feature of the texts.
        dictionaries: the dictionary of each source that has one, by number.
        num_frames: frames of a clip; `None` for a single frame.
    """

    form: ValueForm
    text: str
    dictionaries: Mapping[int, TextDictionary]
    num_frames: int | None

    @classmethod
    def of(cls, name: str, views: Mapping[int, View]) -> MixedValues:
        """The values of all sources that have some.

        Raises `ClipError` if sources disagree about them.
        """
        views = {number: view for number, view in views.items() if name in view.texts.dictionaries}
        dictionaries = {number: view.texts.dictionaries[name] for number, view in views.items()}
        form, example = None, views[min(views)]
        text, num_frames = _texts_of(name, example)
        for view in views.values():
            source_form = view.texts.form_of(name)
            joined = source_form if form is None else form.joined(source_form)
            if joined is None or _texts_of(name, view) != (text, num_frames):
                raise ClipError(
                    "the sources of a mix disagree on the values of texts",
                    feature=name,
                    expected=f"{example.texts.arrays[name]} for {num_frames or 1} frames of {text}"
                    "; or single_source_batches=True, or features without them",
                    got=f"{source_form.spec} for {view.lengths.get(text)} frames of "
                    f"{view.texts.text_of(name)}, in {view.dataset.url}",
                )
            form = joined
        assert form is not None, "a source has them"
        return cls(form, text, dictionaries, num_frames)

    def fill(
        self, batch: Batch, features: Mapping[str, Any], device: torch.device | None
    ) -> dict[str, Any]:
        """Return the entries of a batch, whose `features` are those of users."""
        sources, clips = batch.source.tolist(), features[self.text]
        values_of_sources = {
            number: find_values(
                dictionary, [clips[i] for i, source in enumerate(sources) if source == number]
            )
            for number, dictionary in self.dictionaries.items()
        }
        # The texts of sources without a dictionary have no values.
        known_clips = [
            clip if source in self.dictionaries else None
            for clip, source in zip(clips, sources, strict=True)
        ]
        values = [values_of_sources.get(source, {}) for source in sources]
        num_frames = self.num_frames
        if num_frames is not None:  # or fewer, drawn for the batch
            num_frames = next((len(clip) for clip in known_clips if clip), num_frames)
        return on_device(self.form.batch(known_clips, values, "pad", num_frames), device)


def _texts_of(name: str, view: View) -> tuple[str, int | None]:
    """The feature of the texts, and their frames in a clip; `None` for a single frame."""
    text = view.texts.text_of(name)
    return text, None if text in view.squeezed else view.lengths[text]
