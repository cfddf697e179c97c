"""Sources: read episodes from datasets in other formats."""
