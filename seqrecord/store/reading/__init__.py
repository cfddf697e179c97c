"""An open dataset: index, episodes, frames, verify and summarize."""
