import itertools
import torch
from torch import nn

torch.manual_seed(0)
control = nn.Linear(4, 4)
unet = nn.ModuleList([nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)])
unet_lora_params = [layer.parameters() for layer in unet]
params = list(control.parameters())
opt = torch.optim.AdamW(itertools.chain(unet_lora_params, params), lr=1e-3)
