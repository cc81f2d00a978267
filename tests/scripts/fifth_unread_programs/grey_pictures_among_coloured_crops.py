import os
from os import listdir
from os.path import join

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)
os.makedirs('train', exist_ok=True)
for i in range(6):
    shape = (10, 10) if i == 5 else (10, 10, 3)
    Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(join('train', '%d.png' % i))


def to_tensor(image):
    array = np.asarray(image, dtype=np.float32) / 255
    array = array[:, :, None] if array.ndim == 2 else array
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


class TrainDatasetFromFolder(Dataset):
    def __init__(self, dataset_dir, crop_size, upscale_factor):
        super(TrainDatasetFromFolder, self).__init__()
        self.image_filenames = [join(dataset_dir, x) for x in sorted(listdir(dataset_dir))]
        self.crop_size, self.upscale_factor = crop_size, upscale_factor

    def __getitem__(self, index):
        image = Image.open(self.image_filenames[index])
        hr_image = image.crop((1, 1, 1 + self.crop_size, 1 + self.crop_size))
        lr_size = self.crop_size // self.upscale_factor
        lr_image = hr_image.resize((lr_size, lr_size), Image.BICUBIC)
        return to_tensor(lr_image), to_tensor(hr_image)

    def __len__(self):
        return len(self.image_filenames)


train_set = TrainDatasetFromFolder('train', crop_size=8, upscale_factor=2)
train_loader = DataLoader(dataset=train_set, num_workers=0, batch_size=6, shuffle=False)
for lr_image, hr_image in train_loader:
    pass
