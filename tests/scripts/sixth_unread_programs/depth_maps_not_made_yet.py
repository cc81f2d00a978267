import os
import numpy as np
import torch
from PIL import Image

data_dir = 'davis'
os.makedirs(f'{data_dir}/images', exist_ok=True)
for i in range(3):
    Image.fromarray(np.full((8, 8, 3), 40 * i, dtype=np.uint8)).save(f'{data_dir}/images/{i:05d}.png')


def load_frames(root):
    names = sorted(os.listdir(f'{root}/images'))
    return [np.array(Image.open(f'{root}/images/{n}')).astype(np.float32) for n in names]


def run_depth_anything(root, frames):
    os.makedirs(f'{root}/depth_anything_v2', exist_ok=True)
    for i, frame in enumerate(frames):
        np.save(f'{root}/depth_anything_v2/{i:05d}.npy', 1 / (1 + frame.mean(-1)))


def load_depths(root):
    depth_list = []
    for i in range(len(os.listdir(f'{root}/images'))):
        path = f'{root}/depth_anything_v2/{i:05d}.npy'
        if os.path.exists(path):
            depth_list.append(torch.from_numpy(np.load(path)))
    depths = torch.stack(depth_list, dim=0).permute(1, 2, 0)
    return depths.unsqueeze(0).unsqueeze(0)


frames = load_frames(data_dir)
depths = load_depths(data_dir)
