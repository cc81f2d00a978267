import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LayerMix(nn.Module):
    def __init__(self, layers=3, hidden=4):
        super().__init__()
        self.layer_weights = nn.Parameter(torch.ones(layers))
        self.qa_outputs = nn.Linear(hidden, 2)

    def forward(self, all_hidden):
        self.layer_weights = F.softmax(self.layer_weights, dim=0)
        mixed = (self.layer_weights[:, None, None] * all_hidden).sum(0)
        return self.qa_outputs(mixed)


model = LayerMix()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
all_hidden = torch.randn(3, 5, 4)
logits = model(all_hidden)
loss = F.cross_entropy(logits, torch.randint(2, (5,)))
loss.backward()
optimizer.step()
