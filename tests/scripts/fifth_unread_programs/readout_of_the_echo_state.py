import torch
import torch.nn as nn

torch.manual_seed(0)


class ESN(nn.Module):
    def __init__(self, hidden_size, output_size, lambda_reg=0.0):
        super(ESN, self).__init__()
        self.lambda_reg = lambda_reg
        self.readout = nn.Linear(hidden_size, output_size)
        self.XTX = None
        self.XTy = None

    def accumulate(self, states, target):
        X = torch.cat([torch.ones(states.size(0), 1), states], dim=1)
        if self.XTX is None:
            self.XTX = torch.zeros(X.size(1), X.size(1))
            self.XTy = torch.zeros(X.size(1), target.size(1))
        self.XTX += torch.mm(X.t(), X)
        self.XTy += torch.mm(X.t(), target)

    def fit(self):
        W = torch.linalg.solve(self.XTy,
                               self.XTX + self.lambda_reg * torch.eye(self.XTX.size(0)))[0].t()
        self.readout.bias = nn.Parameter(W[:, 0])
        self.readout.weight = nn.Parameter(W[:, 1:])
        return W


states = torch.tanh(torch.randn(60, 20))
digits = torch.randint(0, 10, (60,))
onehot = nn.functional.one_hot(digits, 10).float()
model = ESN(20, 10, lambda_reg=1e-2)
for s, t in zip(states.split(20), onehot.split(20)):
    model.accumulate(s, t)
W = model.fit()
accuracy = (model.readout(states).argmax(1) == digits).float().mean()
