"""Datasets of derived values: latents and embeddings of frozen models."""
