import torch
import torch.nn as nn

torch.manual_seed(0)


class AutoDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.relu(self.fc(x)))


trained = AutoDecoder()
parallel = nn.DataParallel(trained)
torch.save({"net_state": parallel.state_dict(), "epoch": 3}, "checkpoint.pth")

net = AutoDecoder()
checkpoint = torch.load("checkpoint.pth")
net_state = checkpoint["net_state"]
net.load_state_dict(net_state, strict=True)
net.eval()
