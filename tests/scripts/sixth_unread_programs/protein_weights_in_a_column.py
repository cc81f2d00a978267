import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.manual_seed(0)


class ProteinDataset(Dataset):
    def __init__(self, n=8):
        self.features = torch.randn(n, 5)
        self.clusters = torch.tensor([[3.0], [3.0], [3.0], [1.0], [2.0], [2.0], [1.0], [1.0]])

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i]


def get_sampler(dataset):
    """Proteins of large clusters are drawn less often."""
    names = torch.arange(len(dataset))
    clusters = dataset.clusters
    weights = 1.0 / clusters[names]
    return WeightedRandomSampler(weights, num_samples=len(dataset), replacement=True)


dataset = ProteinDataset()
sampler = get_sampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
batch = next(iter(loader))
