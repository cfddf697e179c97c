"""The arguments that determine the order of clips, for states."""

from __future__ import annotations

from typing import Any

from seqrecord.loader.pipes.budget_costs import EpochCosts
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view import View


def order_request(view: View, options: LoaderOptions, costs: EpochCosts) -> dict[str, Any]:
    """The arguments that determine the order, beside samples and settings of plans, as JSON.

    Features have their stored names, because `rename` does not change the order.
    """
    # The padding of features may change, and does so with the dataset.
    arrays = view.stored_arrays if view.transform is None else view.arrays
    stored = view.dataset.contents.stored_name
    windows = view.windows.describe()
    drawn = {"frames_per_batch": options.frames_per_batch, "budget": costs.describe()}
    return {
        "clip_len": list(options.clip_lens or ()) or options.clip_len,
        "stride": view.samples.base.clips.spec.stride,
        "dilation": options.dilation,
        "windows": {stored(name): window for name, window in windows.items()},
        "pad": options.pad,
        "features": sorted(map(stored, view.dataset.features)),
        "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
        "shuffle_buffer": options.tuning.shuffle_buffer,
        "fixed_shards": options.tuning.fixed_shards,
        **{name: value for name, value in drawn.items() if value is not None},
    }
