import logging
import warnings

import lightning as L
import torch
from torch import nn, utils

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

L.seed_everything(0, verbose=False)
encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))


# define the LightningModule
class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        # training_step defines the train loop. It is independent of forward
        (x,) = batch
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = nn.functional.mse_loss(x_hat, x)
        print("train", self.global_step, repr(loss.item()))
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        print("val", repr(loss.item()))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


autoencoder = LitAutoEncoder(encoder, decoder)
data = utils.data.TensorDataset(torch.rand(48, 16))
train_loader = utils.data.DataLoader(data, batch_size=8)
val_loader = utils.data.DataLoader(data, batch_size=16)

trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=2,
)
trainer.fit(autoencoder, train_loader, val_loader)
