"""Names of features that come from paths in other formats."""

from __future__ import annotations

import re

from seqrecord.schema import MAX_NAME_LENGTH

__all__ = ["feature_name"]


def feature_name(path: str) -> str:
    """`/camera/color/image_raw` is `camera.color.image_raw`.

    What a name cannot have becomes `_`. Two paths may become one name.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.strip("/").replace("/", "."))
    return re.sub(r"^[.-]|[.-]$", "_", name)[:MAX_NAME_LENGTH] or "_"
