"""Files of an Azure Blob container: read by one of several clients, written by Azure's own."""

from seqrecord.storage.azure.opening import open_azure
from seqrecord.storage.azure.storage import AzureStorage

__all__ = [
    "AzureStorage",
    "open_azure",
]
