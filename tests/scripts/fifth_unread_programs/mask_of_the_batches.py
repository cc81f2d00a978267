import torch
import torch.nn as nn
from torch.nn import functional as F

torch.manual_seed(0)


class Forecaster(nn.Module):
    def __init__(self, features, hidden_dim):
        super().__init__()
        self.inp = nn.Linear(features, hidden_dim * 2)
        self.transformer = nn.Transformer(hidden_dim * 2, 4, 1, 1, 16, batch_first=True)
        self.out = nn.Linear(hidden_dim * 2, 1)

    def forward(self, x):
        x = self.inp(x)
        attention_mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
        output = self.transformer(x, x, src_mask=attention_mask, tgt_mask=attention_mask,
                                  src_is_causal=True, tgt_is_causal=True)
        return self.out(output)


model = Forecaster(3, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data, target = torch.randn(6, 5, 3), torch.randn(6, 5, 1)
for _ in range(2):
    optimizer.zero_grad()
    F.mse_loss(model(data), target).backward()
    optimizer.step()

model.eval()
x = torch.randn(6, 5, 3)
with torch.no_grad():
    forecast = model(x)
