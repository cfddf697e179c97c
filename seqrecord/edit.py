"""Changes to existing datasets: episodes, features, splits, merging, unused bytes.

Record files never change. Changes are stored in small files beside them, and one commit replaces
index and manifest: a reader sees either the whole edit or none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.store.reading.versions import list_versions as list_versions
    from seqrecord.tools.edit.changes import restore_version as restore_version
    from seqrecord.tools.edit.cleaning import RewriteReport as RewriteReport
    from seqrecord.tools.edit.cleaning import clean as clean
    from seqrecord.tools.edit.cleaning import rewrite_files as rewrite_files
    from seqrecord.tools.edit.episodes import delete_episodes as delete_episodes
    from seqrecord.tools.edit.episodes import rename_episodes as rename_episodes
    from seqrecord.tools.edit.episodes import set_metadata as set_metadata
    from seqrecord.tools.edit.episodes import split_dataset as split_dataset
    from seqrecord.tools.edit.episodes import split_episodes as split_episodes
    from seqrecord.tools.edit.episodes import trim_episodes as trim_episodes
    from seqrecord.tools.edit.features import Values as Values
    from seqrecord.tools.edit.features import add_feature as add_feature
    from seqrecord.tools.edit.features import describe_features as describe_features
    from seqrecord.tools.edit.features import drop_features as drop_features
    from seqrecord.tools.edit.features import rename_features as rename_features
    from seqrecord.tools.edit.features import set_text as set_text
    from seqrecord.tools.edit.features import values_of_dataset as values_of_dataset
    from seqrecord.tools.edit.features import values_of_files as values_of_files
    from seqrecord.tools.edit.merging import MergeReport as MergeReport
    from seqrecord.tools.edit.merging import merge_datasets as merge_datasets

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
