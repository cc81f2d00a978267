import torch
import torch.nn as nn

torch.manual_seed(0)


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 4)


model = nn.ModuleList([Output(), Output()])
before = [m.dense.weight.detach().clone() for m in model]
ori_pred_emb, tgt_emb = torch.randn(4), torch.randn(4)
for layer, pos in [(0, 2), (1, 5)]:
    model[layer].dense.weight[:, pos] -= ori_pred_emb * 0.5
    model[layer].dense.weight[:, pos] += tgt_emb * 2.0
