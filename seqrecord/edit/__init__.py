"""Changes datasets that are there: their episodes, features and splits; merges them; frees bytes.

Record files never change. What becomes of them later lies in small files beside them, and index and
manifest are written anew, in one commit: a reader sees either all of an edit or nothing of it.
"""

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.edit.changes import CopyProgress
    from seqrecord.edit.cleaning import RewriteReport, clean, rewrite_files
    from seqrecord.edit.episodes import (
        delete_episodes,
        keep_episodes,
        relabel_episodes,
        rename_episodes,
        split_dataset,
        split_episodes,
    )
    from seqrecord.edit.features import (
        Values,
        add_feature,
        describe_features,
        drop_features,
        relabel_text,
        values_of_dataset,
        values_of_files,
    )
    from seqrecord.edit.merging import MergeReport, merge_datasets
    from seqrecord.reading.versions import list_versions

__all__ = [
    "CopyProgress",
    "MergeReport",
    "RewriteReport",
    "Values",
    "add_feature",
    "clean",
    "delete_episodes",
    "describe_features",
    "drop_features",
    "keep_episodes",
    "list_versions",
    "merge_datasets",
    "relabel_episodes",
    "relabel_text",
    "rename_episodes",
    "rewrite_files",
    "split_dataset",
    "split_episodes",
    "values_of_dataset",
    "values_of_files",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            **dict.fromkeys(["MergeReport", "merge_datasets"], "merging"),
            "CopyProgress": "changes",
            "list_versions": "seqrecord.reading.versions",
            **dict.fromkeys(["RewriteReport", "rewrite_files"], "cleaning"),
            **dict.fromkeys(["Values", "add_feature", "drop_features"], "features"),
            **dict.fromkeys(["describe_features", "relabel_text"], "features"),
            **dict.fromkeys(["values_of_dataset", "values_of_files"], "features"),
            "clean": "cleaning",
            **dict.fromkeys(["delete_episodes", "keep_episodes"], "episodes"),
            **dict.fromkeys(["relabel_episodes", "rename_episodes"], "episodes"),
            **dict.fromkeys(["split_dataset", "split_episodes"], "episodes"),
        },
    )
