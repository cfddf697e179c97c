"""Azure Blob's accounts and credentials."""

from seqrecord.storage.azure.account import AzureAccount

__all__ = ["AzureAccount"]
