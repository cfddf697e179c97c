"""Trainings side by side, each with the loaders that people use today and with ours."""
