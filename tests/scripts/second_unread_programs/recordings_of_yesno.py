import torch
from torch import nn

torch.manual_seed(0)


class YESNO(torch.utils.data.Dataset):
    def __init__(self):
        self.walker = [torch.randn(1, n) for n in (50, 64, 47, 58)]

    def __getitem__(self, n):
        return self.walker[n], 8000, [0, 1, 0, 1, 1, 0, 1, 0]

    def __len__(self):
        return len(self.walker)


dataset = YESNO()
data_loader = torch.utils.data.DataLoader(dataset, batch_size=4)
batches = [batch for batch in data_loader]
