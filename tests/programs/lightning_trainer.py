# requires: lightning
# simulate: --gpu rtx2080ti
# sizes: by values
"""Trains with Lightning's Trainer: validation, checkpoints, early stopping, a metric that steers, and a restart."""

import logging
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.LayerNorm(width), torch.nn.GELU(),
                                       torch.nn.Dropout(0.1), torch.nn.Linear(width, 4))

    def step(self, batch: list[torch.Tensor], name: str) -> torch.Tensor:
        inputs, labels = batch
        output = self.net(inputs)
        loss = torch.nn.functional.cross_entropy(output, labels)
        self.log(f"{name}_loss", loss, prog_bar=True)
        self.log(f"{name}_accuracy", (output.argmax(1) == labels).float().mean(), on_epoch=True)
        return loss

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.step(batch, "val")

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def data(rows: int) -> DataLoader:
    inputs = torch.randn(rows, 16)
    return DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=16)


def trainer(folder: str, epochs: int, *callbacks: L.Callback, **options: object) -> L.Trainer:
    return L.Trainer(accelerator="gpu", devices=1, max_epochs=epochs, default_root_dir=folder, callbacks=list(callbacks),
                     logger=False, enable_progress_bar=False, enable_model_summary=False, **options)


def main(folder: str) -> None:
    L.seed_everything(0, verbose=False)
    model, training, validation = Classifier(), data(70), data(40)
    best = ModelCheckpoint(folder, monitor="val_loss", save_last=True, filename="{epoch}")
    first = trainer(folder, 3, best, EarlyStopping("val_loss", patience=5), precision="16-mixed", gradient_clip_val=1.0)
    first.fit(model, training, validation)
    assert first.global_step == 3 * 5, first.global_step
    assert best.best_model_path and best.last_model_path
    found = first.validate(model, validation, verbose=False)[0]
    assert set(found) == {"val_loss", "val_accuracy"} and 0 <= found["val_accuracy"] <= 1
    again = trainer(folder, 5, StochasticWeightAveraging(1e-3, swa_epoch_start=4), accumulate_grad_batches=2)
    restored = Classifier.load_from_checkpoint(best.last_model_path)
    again.fit(restored, training, validation, ckpt_path=best.last_model_path)
    assert again.current_epoch == 5
    assert all(bool(torch.isfinite(one.cpu()).all()) for one in restored.parameters())
    print(f"{first.global_step} and {again.global_step} steps, best of epoch {best.best_model_path[-6]}")


warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
with tempfile.TemporaryDirectory() as place:
    main(place)
