import torch
from torch import nn

torch.manual_seed(0)


class ChangeDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))


torch.save({"model_G_state_dict": ChangeDetector().state_dict()}, "best_ckpt.pt")
net_G = torch.compile(ChangeDetector())
checkpoint = torch.load("best_ckpt.pt")
net_G.load_state_dict(checkpoint["model_G_state_dict"])
