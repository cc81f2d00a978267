import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class _PSPModule(nn.Module):
    def __init__(self, in_channels, bin_sizes):
        super().__init__()
        self.stages = nn.ModuleList([self._make_stages(in_channels, 2, b_s) for b_s in bin_sizes])

    def _make_stages(self, in_channels, out_channels, bin_sz):
        prior = nn.AdaptiveAvgPool2d(output_size=bin_sz)
        conv = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)
        bn = nn.BatchNorm2d(out_channels)
        return nn.Sequential(prior, conv, bn, nn.ReLU())

    def forward(self, features):
        h, w = features.size()[2], features.size()[3]
        pyramids = [features]
        pyramids.extend([F.interpolate(stage(features), size=(h, w)) for stage in self.stages])
        return torch.cat(pyramids, dim=1)


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader, self.seen = model, loader, 0

    def _train_epoch(self):
        self.model.train()
        for data, target in self.loader:
            output = self.model(data)
            loss = F.cross_entropy(output, target)
            loss.backward()
            self.seen += len(data)


model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), _PSPModule(4, [1, 2]), nn.Conv2d(8, 3, 1))
dataset = TensorDataset(torch.randn(13, 3, 8, 8), torch.randint(0, 3, (13, 8, 8)))
trainer = Trainer(model, DataLoader(dataset, batch_size=4, shuffle=True))
trainer._train_epoch()
seen = trainer.seen
