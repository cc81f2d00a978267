import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.classifier = nn.Linear(6, 2)
        self.pooler = nn.Linear(6, 6)          # of the pretrained model, not used here

    def forward(self, x):
        return self.classifier(torch.tanh(self.body(x)))


maml = Learner()
opt = torch.optim.SGD(maml.parameters(), lr=0.1)
meta_batch_size = 4
opt.zero_grad()
for task in range(meta_batch_size):
    loss = F.cross_entropy(maml(torch.randn(5, 4)), torch.randint(2, (5,)))
    loss.backward()
summed = maml.body.weight.grad.clone()
for p in maml.parameters():
    p.grad.data.mul_(1.0 / meta_batch_size)
opt.step()
