import torch


def cat_coo(tensors):
    indices, values, rows = [], [], 0
    for tensor in tensors:
        indices.append(tensor.indices())
        indices[-1] = indices[-1] + torch.tensor([[rows], [0]])
        values.append(tensor.values())
        rows += tensor.size(0)
    return torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), (rows, tensors[0].size(1)))


def adjacency(edges):
    index = torch.tensor(edges).T
    return torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (3, 3))


adjacencies = [adjacency([[0, 1], [1, 2], [0, 1]]), adjacency([[2, 0]])]
out = cat_coo(adjacencies)
