"""Object stores (Azure Blob, S3, GCS) and web servers, read with obstore."""

from seqrecord.storage.objects.opening import open_objects

__all__ = ["open_objects"]
