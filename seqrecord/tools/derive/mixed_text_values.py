"""Values of texts in batches of a mix, from the dictionary of each clip's source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from seqrecord.errors import ClipError
from seqrecord.loader.engine.batches import Batch
from seqrecord.loader.pipes.text_columns import MixedTextColumns
from seqrecord.loader.pipes.view import View
from seqrecord.store.reading.text_dictionaries import TextDictionary
from seqrecord.tools.derive.text_values import TextValues, ValueForm, find_values, on_device


@dataclass(frozen=True, eq=False)
class MixedValues(MixedTextColumns):
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

    @property
    def name(self) -> str:
        """The name of the values."""
        return self.form.name

    @property
    def is_nested(self) -> bool:
        """Whether they come as nested tensors."""
        return self.form.as_nested

    @classmethod
    def of(cls, name: str, views: Mapping[int, View]) -> MixedValues:
        """The values of all sources that have some.

        Raises `ClipError` if sources disagree about them.
        """
        texts = {
            number: view.texts
            for number, view in views.items()
            if isinstance(view.texts, TextValues) and name in view.texts.names
        }
        forms = {n: values.form_of(name) for n, values in texts.items()}
        places = {
            n: (values.text_of(name), views[n].frames_of_texts(name)) for n, values in texts.items()
        }
        example, *_ = texts
        form = forms[example]
        for number, source_form in forms.items():
            joined = form.joined(source_form)
            if joined is None or places[number] != places[example]:
                raise ClipError(
                    "the sources of a mix disagree on the values of texts",
                    feature=name,
                    expected=f"{form.describe(*places[example])}; or features without them, or "
                    "single_source_batches=True",
                    got=f"{source_form.describe(*places[number])} in {views[number].dataset.url}",
                )
            form = joined
        text, frames = places[example]
        dictionaries = {n: values.dictionaries[name] for n, values in texts.items()}
        return cls(form, text, dictionaries, next(iter(frames), None))

    def fill(
        self,
        batch: Batch,
        features: Mapping[str, Any],
        device: torch.device | None,
        *,
        fits: bool = False,
    ) -> dict[str, Any]:
        """Return the entries of a batch; `features` are in the form for users.

        If it `fits`, padded to the longest value of the batch.
        """
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
        entries = self.form.batch(known_clips, values, "pad", num_frames, fits=fits)
        return on_device(entries, device)
