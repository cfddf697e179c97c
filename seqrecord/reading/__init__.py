"""An open dataset: its index, episodes and frames; verify and summarize it."""
