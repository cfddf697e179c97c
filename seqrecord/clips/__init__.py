"""Clips: which there are, which frames each has of each feature, and what is made of them."""
