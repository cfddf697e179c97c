"""Pages of datasets, plots with matplotlib, and episodes in the Rerun viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.tools.viewer.dataset_page import MAX_FOLDER as MAX_FOLDER
    from seqrecord.tools.viewer.dataset_page import MAX_PAGE as MAX_PAGE
    from seqrecord.tools.viewer.dataset_page import view_page as view_page
    from seqrecord.tools.viewer.rerun_log import view_rerun as view_rerun
    from seqrecord.tools.viewer.view import DEFAULT_CLIP_LEN as DEFAULT_CLIP_LEN

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
