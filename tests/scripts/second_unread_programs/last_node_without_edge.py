import torch

torch.manual_seed(0)


def propagate(x, edge_index, n_nodes, num_iterations=3):
    edge_weight = torch.ones(edge_index.shape[1]) / 2
    adj = torch.sparse_coo_tensor(edge_index, edge_weight)
    out = x
    for _ in range(num_iterations):
        out = torch.sparse.mm(adj, out)
    return out


n_nodes = 5
x = torch.randn(n_nodes, 3)
edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])      # node 4 has no edge
filled = propagate(x, edge_index, n_nodes)
