"""A cache on local disk of what is read from elsewhere, within a limit."""

from seqrecord.storage.cache.report import CacheInfo, cache_info, clear_cache
from seqrecord.storage.cache.storage import CachedStorage, forget_cached, with_cache

__all__ = [
    "CacheInfo",
    "CachedStorage",
    "cache_info",
    "clear_cache",
    "forget_cached",
    "with_cache",
]
