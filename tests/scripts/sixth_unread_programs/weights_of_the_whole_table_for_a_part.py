import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.manual_seed(0)


class Derm(Dataset):
    def __init__(self, df, percent=1.0):
        self.df = df.sample(frac=percent, random_state=0).reset_index(drop=True)

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        row = self.df.iloc[i]
        return torch.full((3, 4, 4), float(row['age']) / 100), int(row['label'])


def get_weights(labels):
    counts = labels.value_counts()
    return torch.tensor([1.0 / counts[y] for y in labels])


train_csv = pd.DataFrame({'age': np.arange(20, 60, 2), 'label': [0, 1, 1, 1] * 5})
dataset_train = Derm(train_csv, percent=0.3)
weights = get_weights(train_csv['label'])
sampler = WeightedRandomSampler(weights, len(dataset_train), replacement=True)
loader = DataLoader(dataset_train, sampler=sampler, batch_size=2)
seen = []
for images, labels in loader:
    seen += labels.tolist()
