import numpy as np
import pandas as pd
import torch
import torch.nn as nn

torch.manual_seed(0)


class GraphAttention_layer(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.lin_l = nn.Linear(input_dim, output_dim, bias=False)
        self.lin_r = nn.Linear(input_dim, output_dim, bias=False)
        self.att = nn.Parameter(torch.randn(1, output_dim))

    def forward(self, x, edge_index):
        x_l, x_r = self.lin_l(x), self.lin_r(x)
        src, dst = edge_index
        alpha = (torch.tanh(x_l[src] + x_r[dst]) * self.att).sum(1)
        alpha = torch.exp(alpha)
        total = torch.zeros(x.shape[0]).index_add(0, dst, alpha)
        out = torch.zeros_like(x_l).index_add(0, dst, x_l[src] * (alpha / total[dst])[:, None])
        return out


def data_preparation(adata):
    exp_mat = adata.to_numpy()
    x = torch.from_numpy(exp_mat.T)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 0]])
    return x, edges


adata = pd.DataFrame(np.log1p(np.random.default_rng(0).poisson(3.0, (12, 7))),
                     columns=[f'gene{i}' for i in range(7)])
x, edge_index = data_preparation(adata)
emb = GraphAttention_layer(12, 4)(x, edge_index)
