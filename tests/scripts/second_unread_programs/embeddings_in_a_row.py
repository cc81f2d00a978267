import torch
from torch import nn

torch.manual_seed(0)


class incomemodel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedded_layer = nn.Sequential(
            nn.Embedding(num_embeddings=4, embedding_dim=8),
            nn.Embedding(num_embeddings=4, embedding_dim=8),
            nn.Embedding(num_embeddings=4, embedding_dim=8),
        )
        self.stacked_layer = nn.Sequential(
            nn.Linear(in_features=24, out_features=10),
            nn.ReLU(),
            nn.BatchNorm1d(10),
            nn.Linear(10, 2),
        )

    def forward(self, x):
        x = self.embedded_layer(x).flatten(1)
        return self.stacked_layer(x)


model = incomemodel()
x = torch.randint(4, (6, 3))               # three columns with four kinds each
out = model(x)
