import numpy as np
import torch


def collate_fn(batch):
    data = {}
    sizes = [bb["num_nodes"] for bb in batch]
    cum_size = np.cumsum(np.concatenate([np.zeros(1), sizes]))
    edges = [bb["edges"] for bb in batch]
    for ii in range(len(batch)):
        edges[ii] += cum_size[ii]
    data["edges"] = torch.cat(edges, dim=0)
    return data


batch = [
    {"num_nodes": 3, "edges": torch.tensor([[0, 1], [1, 2]])},
    {"num_nodes": 4, "edges": torch.tensor([[0, 3], [2, 1]])},
    {"num_nodes": 2, "edges": torch.tensor([[0, 1]])},
]
data = collate_fn(batch)
degree = torch.zeros(9).index_add(0, data["edges"][:, 0], torch.ones(5))
