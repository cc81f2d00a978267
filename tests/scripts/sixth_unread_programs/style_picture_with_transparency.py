import numpy as np
import torch
from PIL import Image

rng = np.random.default_rng(0)
Image.fromarray(rng.integers(0, 255, (16, 16, 4), dtype=np.uint8), 'RGBA').save('fire.png')


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class ToTensor:
    def __call__(self, pic):
        return torch.from_numpy(np.array(pic)).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)

    def __call__(self, tensor):
        return tensor.clone().sub_(self.mean[:, None, None]).div_(self.std[:, None, None])


pil2tensor = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])


def load_image(filename):
    img = Image.open(filename)
    return pil2tensor(img).unsqueeze(0)


style = load_image('fire.png')
