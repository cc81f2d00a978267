import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self, num_features, num_hiddens, num_outputs):
        super(MLP, self).__init__()
        self.num_features = num_features
        self.num_hiddens = num_hiddens
        self.num_outputs = num_outputs

    def forward(self, X):
        X = nn.Linear(self.num_features, self.num_hiddens)(X)
        X = nn.BatchNorm1d(self.num_hiddens)(X)
        X = nn.Tanh()(X)
        X = nn.Dropout(p=0.15)(X)
        X = nn.Linear(self.num_hiddens, self.num_outputs)(X)
        return X


net = MLP(6, 8, 2)
train_out = net(torch.randn(10, 6))
net.eval()
sample = torch.randn(1, 6)
with torch.no_grad():
    pred = net(sample)
