import numpy as np
import torch
import torch.nn as nn


class HyperConv(nn.Module):
    def __init__(self, layers=2, items=5, dim=4):
        super().__init__()
        self.layers = layers
        self.embedding = nn.Embedding(items, dim)

    def forward(self, adjacency):
        item_embeddings = self.embedding.weight
        final = [item_embeddings]
        for i in range(self.layers):
            item_embeddings = torch.mm(adjacency, item_embeddings)
            final.append(item_embeddings)
        item_embeddings = np.sum([e.numpy() for e in final], 0) / (self.layers + 1)
        return torch.as_tensor(item_embeddings)


torch.manual_seed(0)
conv = HyperConv()
adjacency = torch.softmax(torch.randn(5, 5), 1)
out = conv(adjacency)
loss = (out ** 2).sum() + 0 * conv.embedding.weight.sum()
loss.backward()
