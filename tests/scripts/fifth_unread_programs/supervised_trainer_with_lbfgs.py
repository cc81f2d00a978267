import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class simpleNN(torch.nn.Module):
    def __init__(self, D_in, H, D_out):
        super(simpleNN, self).__init__()
        self.linear1 = torch.nn.Linear(D_in, H)
        self.linear2 = torch.nn.Linear(H, D_out)

    def forward(self, x):
        return self.linear2(torch.tanh(self.linear1(x)))


def create_supervised_trainer(model, optimizer, loss_fn):
    def _update(batch):
        model.train()
        x, y = batch
        optimizer.zero_grad()
        y_pred = model(x)
        loss = loss_fn(y_pred, y)
        loss.backward()
        optimizer.step()
        return loss.item()
    return _update


X = torch.randn(30, 5).double()
train_loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True).sin()), batch_size=30)
model = simpleNN(5, 10, 1)
model.double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1)
trainer = create_supervised_trainer(model, optimizer, torch.nn.MSELoss())
history = []
for epoch in range(4):
    for batch in train_loader:
        history.append(trainer(batch))
