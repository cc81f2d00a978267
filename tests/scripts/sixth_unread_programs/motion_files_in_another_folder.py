import glob
import os
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
os.makedirs('data/h36m_txt/S1', exist_ok=True)
for k in range(3):
    np.savetxt(f'data/h36m_txt/S1/walking_{k}.txt', np.random.default_rng(k).random((6, 4)), delimiter=',')


class config:
    batch_size = 2
    shuffle = True


config.amass_anno_dir = 'data/h36m'


class H36MDataset(Dataset):
    def __init__(self, config, split_name):
        self.h36m_motion_poses = self._collect_all(config.amass_anno_dir, split_name)

    def _collect_all(self, root, split_name):
        poses = []
        for file in sorted(glob.glob(os.path.join(root, split_name, '*.txt'))):
            poses.append(torch.from_numpy(np.loadtxt(file, delimiter=',')).float())
        return poses

    def __len__(self):
        return len(self.h36m_motion_poses)

    def __getitem__(self, index):
        return self.h36m_motion_poses[index]


dataset = H36MDataset(config, 'S1')
dataloader = DataLoader(dataset=dataset, batch_size=config.batch_size, shuffle=config.shuffle,
                        drop_last=True)
batch = next(iter(dataloader))
