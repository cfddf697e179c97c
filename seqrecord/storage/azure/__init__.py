"""Files of an Azure Blob container, written with Azure's own client."""

from seqrecord.storage.azure.account import AzureAccount
from seqrecord.storage.azure.storage import AzureStorage

__all__ = ["AzureAccount", "AzureStorage"]
