import torch


class M(torch.nn.Module):
    def forward(self, x):
        if x.all():
            return x.cos()
        return x.sin()


exported = torch.export.export(M(), (torch.ones(6, 4),))
a = exported.module()(torch.ones(6, 4))
b = exported.module()(torch.zeros(6, 4))
