"""Datasets of a mix file in place of LeRobot's."""

from __future__ import annotations

from typing import Any

from seqrecord.lerobot import LeRobotMixDataset
from seqrecord.robots.lerobot.mix_meta import MixMeta, open_mix

__all__ = ["MixDatasets"]

_ENDLESS = 1 << 30  # batches of an epoch: a mix continues, so its workers need not start again
_IMAGE_FRAMES = 500  # of each source, for statistics of images


class MixDatasets:
    """Makes the datasets of a training from a mix file.

    Args:
        factory: LeRobot's module `datasets.factory`.
        path: the mix file.
        deploy: the source whose statistics the checkpoint contains, or `None`.
    """

    def __init__(self, factory: Any, path: str, deploy: str | None) -> None:
        self._factory, self._path, self._deploy = factory, path, deploy

    def make(self, cfg: Any) -> tuple[LeRobotMixDataset, LeRobotMixDataset | None]:
        """The datasets for training and evaluation; replaces `make_train_eval_datasets`.

        `--dataset.repo_id` is a label, and `--dataset.episodes` are numbers in the mix.
        `--dataset.eval_split` holds out the last episodes of each task of each source.
        """
        mix = open_mix(self._path)
        meta = MixMeta.of(
            mix,
            cfg.dataset.repo_id,
            deploy=self._deploy,
            modes=getattr(cfg.trainable_config, "normalization_mapping", None),
            image_frames=0 if cfg.dataset.use_imagenet_stats else _IMAGE_FRAMES,
            depth_output_unit=cfg.dataset.depth_output_unit,
        )

        def dataset(repo_id: str, **options: Any) -> LeRobotMixDataset:
            for name in ("root", "revision", "video_backend"):
                options.pop(name)
            options |= {"repo_id": repo_id, "meta": meta, "stopping_strategy": _ENDLESS}
            return LeRobotMixDataset(mix, **options)

        self._factory.LeRobotDatasetMetadata = lambda *_, **__: meta.theirs
        self._factory.LeRobotDataset = dataset
        full: LeRobotMixDataset = self._factory.make_dataset(cfg)
        return full.split(cfg.dataset.eval_split) if cfg.dataset.eval_split else (full, None)
