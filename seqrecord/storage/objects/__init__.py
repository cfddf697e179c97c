"""Object stores (Azure Blob, S3, GCS) and web servers, read with obstore."""

from seqrecord.storage.objects.backends import OBJECTS, open_objects

__all__ = ["OBJECTS", "open_objects"]
