"""Functions that change an epoch's table, for the argument `samples` of loaders.

Each returns a function for `samples=`, or for a list of such functions. Your own functions take
the table (`Samples`), the epoch's number and random numbers (`SampleRandom`), and return a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    __all__: list[str]

    from seqrecord.loader.clips.samples import Samples as Samples
    from seqrecord.loader.clips.segments import Segments as Segments
    from seqrecord.loader.clips.segments import segments as segments
    from seqrecord.loader.sampling.built_ins import dilate as dilate
    from seqrecord.loader.sampling.built_ins import every as every
    from seqrecord.loader.sampling.built_ins import final_goal as final_goal
    from seqrecord.loader.sampling.built_ins import future_goal as future_goal
    from seqrecord.loader.sampling.built_ins import inside as inside
    from seqrecord.loader.sampling.built_ins import one_per_episode as one_per_episode
    from seqrecord.loader.sampling.built_ins import per_episode as per_episode
    from seqrecord.loader.sampling.built_ins import repeat_by as repeat_by
    from seqrecord.loader.sampling.built_ins import reverse as reverse
    from seqrecord.loader.sampling.built_ins import skip_first as skip_first
    from seqrecord.loader.sampling.built_ins import skip_last as skip_last
    from seqrecord.loader.sampling.built_ins import subset as subset
    from seqrecord.loader.sampling.built_ins import where as where
    from seqrecord.loader.sampling.sample_functions import BuiltIn as BuiltIn
    from seqrecord.loader.sampling.sample_functions import SampleRandom as SampleRandom

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
