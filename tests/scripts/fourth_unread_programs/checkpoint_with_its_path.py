from pathlib import PurePosixPath

import torch
import torch.nn as nn

torch.manual_seed(0)
config = {"train": {"resume": "checkpoint_epoch_2.pt", "results": PurePosixPath("results")}}


def create_trainer(model, optimizer, config):
    resume = config["train"]["resume"]
    epoch = 0
    if resume:
        previous_checkpoint = torch.load(resume, map_location='cpu')
        model.load_state_dict(previous_checkpoint["model"])
        optimizer.load_state_dict(previous_checkpoint["optimizer"])
        epoch = previous_checkpoint["epoch"]
    return epoch


model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
saved = model.weight.detach().clone()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2, "config": config}, "checkpoint_epoch_2.pt")
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epoch = create_trainer(model, optimizer, config)
