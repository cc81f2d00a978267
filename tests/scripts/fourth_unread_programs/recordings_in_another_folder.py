import glob
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

os.makedirs('dset/Sleep-EDF-2018/npz', exist_ok=True)
for i in range(3):
    np.savez(f'dset/Sleep-EDF-2018/npz/SC40{i}1E0.npz', x=np.random.rand(4, 30), y=np.zeros(4))


class EEGDataLoader(Dataset):
    def __init__(self, root_dir):
        self.dataset_path = os.path.join(root_dir, 'Sleep-EDF-2018', 'npz')
        self.files = sorted(glob.glob(os.path.join(self.dataset_path, '*.npz')))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, idx):
        return torch.from_numpy(np.load(self.files[idx])['x']).float()


dataset = EEGDataLoader(root_dir='./data')
train_loader = DataLoader(dataset=dataset, batch_size=2, shuffle=True)
batches = [batch for batch in train_loader]
