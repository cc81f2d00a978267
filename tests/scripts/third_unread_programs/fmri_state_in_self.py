import torch
from torch import nn

torch.manual_seed(0)


class fMRI_LSTM(nn.Module):
    def __init__(self, hidden_dim, input_dim, batch=8):
        super(fMRI_LSTM, self).__init__()
        self.hidden_dim = hidden_dim
        self.batch = batch
        self.lstm = nn.LSTM(input_dim, hidden_dim, num_layers=1, batch_first=True)
        self.linear = nn.Linear(hidden_dim, 1)
        self.hidden = self.init_hidden()

    def init_hidden(self):
        return (torch.zeros(1, self.batch, self.hidden_dim), torch.zeros(1, self.batch, self.hidden_dim))

    def forward(self, x):
        lstm_out, self.hidden = self.lstm(x, self.hidden)
        return torch.sigmoid(self.linear(lstm_out[:, -1, :]))


model = fMRI_LSTM(6, 5)
criterion = nn.BCELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
grads = []
for i in range(3):
    training_data = torch.randn(8, 12, 5)
    label = torch.randint(0, 2, (8, 1)).float()
    outputs = model(training_data)
    loss = criterion(outputs, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    grads.append(model.lstm.weight_hh_l0.grad.clone())
