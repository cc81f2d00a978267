import torch
import torch.nn as nn

torch.manual_seed(0)


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.lin = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x, adj):
        out = torch.matmul(adj, self.lin(x))
        return torch.relu(out)


dense = torch.tensor([[[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]],
                      [[1.0, 0.0, 0.2], [0.0, 1.0, 0.0], [0.2, 0.0, 1.0]]])
rows = [d.to_sparse_csr() for d in dense]
adj = torch.sparse_csr_tensor(
    torch.stack([torch.tensor([0, 2, 4, 5]), torch.tensor([0, 2, 3, 5])]),
    torch.stack([torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, 2, 1, 0, 2])]),
    torch.stack([r.values() for r in rows]), size=(2, 3, 3))
x = torch.randn(3, 4)
conv = GraphConvolution(4, 5)
with torch.no_grad():
    out = conv(x, adj)
