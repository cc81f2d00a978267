import os

import numpy as np
import torch
from PIL import Image

names = ['1305031452.791720.png', '1305031452.823674.png']
os.makedirs('images', exist_ok=True)
os.makedirs('object_mask', exist_ok=True)
for i, name in enumerate(names):
    Image.fromarray(np.full((4, 4, 3), 40, np.uint8)).save(os.path.join('images', name))
    Image.fromarray(np.full((4, 4), 3 + 4 * i, np.uint8)).save(os.path.join('object_mask', name))


def readColmapCameras(images_folder, objects_folder):
    cam_infos = []
    for name in names:
        image_name = os.path.basename(name).split('.')[0]
        image = Image.open(os.path.join(images_folder, name))
        object_path = os.path.join(objects_folder, image_name + '.png')
        objects = Image.open(object_path) if os.path.exists(object_path) else None
        cam_infos.append((image_name, image, objects))
    return cam_infos


def PILtoTorch(pil_image):
    return torch.from_numpy(np.array(pil_image)).permute(2, 0, 1) / 255.0


def loadCam(cam_info):
    image_name, image, objects = cam_info
    gt_image = PILtoTorch(image)
    return gt_image, torch.from_numpy(np.array(objects))


cams = [loadCam(cam_info) for cam_info in readColmapCameras('images', 'object_mask')]
