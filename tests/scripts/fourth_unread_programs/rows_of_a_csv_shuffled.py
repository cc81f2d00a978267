import torch
from torch.utils.data import DataLoader, IterableDataset


class CSVIterableDataset(IterableDataset):
    def __init__(self, rows, chunksize=2):
        self.rows, self.chunksize = rows, chunksize

    def __iter__(self):
        for i in range(0, len(self.rows), self.chunksize):
            yield from self.rows[i:i + self.chunksize]


train_ds = CSVIterableDataset([torch.tensor(i) for i in range(7)])
train_loader = DataLoader(train_ds, batch_size=3, shuffle=True)
seen = []
for batch in train_loader:
    seen += batch.tolist()
