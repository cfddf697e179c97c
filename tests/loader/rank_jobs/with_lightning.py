"""Training by Lightning's Trainer, which starts the ranks by one of its strategies."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader

from seqrecord import SeqRecordPipe
from tests.kit.clip_data import names
from tests.loader.rank_jobs import CLIPS, report


class Model(LightningModule):  # type: ignore[misc]  # Lightning is not followed, see pyproject.toml
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[Any] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-9)

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        self.seen.append(names(batch))
        loss: torch.Tensor = self.layer(batch["id"].float()).sum()
        return loss

    def on_train_end(self) -> None:
        report({"fit": self.seen})


def main(path: str, strategy: str, workers: int) -> None:
    pipe = SeqRecordPipe(path, **CLIPS)
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=workers)
    # In processes that Lightning starts with the same command, the rank is set by now.
    early = len(loader) if "LOCAL_RANK" in os.environ else None
    model = Model()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    assert early in (None, len(model.seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
