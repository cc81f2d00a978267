import torch
import torch.nn as nn

torch.manual_seed(0)


class Leaky(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta
        self.mem = None

    def reset_mem(self):
        self.mem = None

    def forward(self, input_):
        self.mem = input_ if self.mem is None else self.beta * self.mem + input_
        return torch.sigmoid(4 * (self.mem - 1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.lif = Leaky(0.9)

    def forward(self, x):
        return self.lif(self.fc(x))


def forward_pass(net, data, num_steps=4):
    spk_rec = []
    for step in range(num_steps):
        spk_rec.append(net(data))
    return torch.stack(spk_rec)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
losses = []
for batch in range(3):
    data, targets = torch.rand(5, 6), torch.randint(0, 3, (5,))
    loss_val = nn.functional.cross_entropy(forward_pass(net, data).sum(0), targets)
    optimizer.zero_grad()
    loss_val.backward()
    optimizer.step()
    losses.append(loss_val.item())
