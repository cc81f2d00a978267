import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class EmbeddingModel(nn.Module):
    def __init__(self, freeze=True, output_dim=3):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.projection = nn.Linear(8, output_dim)
        if freeze:
            for param in self.parameters():
                param.requires_grad = False

    def forward(self, x):
        return self.projection(self.backbone(x))


model = EmbeddingModel(freeze=True)
anchors, positives, negatives = torch.randn(3, 4, 6)
loss = F.triplet_margin_loss(model(anchors), model(positives), model(negatives))
loss.backward()
