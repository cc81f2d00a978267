import numpy as np
import torch
import torch.nn as nn
from PIL import Image

torch.manual_seed(0)
rng = np.random.default_rng(0)
Image.fromarray(rng.integers(0, 255, (52, 44, 3), dtype=np.uint8)).save('image.png')
Image.fromarray((rng.random((50, 42)) > 0.5).astype(np.uint8) * 255).save('mask.png')


class RefinementModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.feats = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.final = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, x, seg):
        return torch.sigmoid(self.final(torch.relu(self.feats(torch.cat((x, seg), 1)))))


def safe_forward(model, im, seg):
    b, _, ph, pw = seg.shape
    if (ph % 8 != 0) or (pw % 8 != 0):
        newH, newW = (ph // 8 + 1) * 8, (pw // 8 + 1) * 8
        p_im = torch.zeros(b, 3, newH, newW)
        p_seg = torch.zeros(b, 1, newH, newW) - 1
        p_im[:, :, 0:ph, 0:pw] = im
        p_seg[:, :, 0:ph, 0:pw] = seg
        im, seg = p_im, p_seg
    return model(im, seg)[:, :, 0:ph, 0:pw]


def load():
    im = Image.open('image.png').convert('RGB')
    seg = Image.open('mask.png').convert('L')
    im_t = torch.from_numpy(np.array(im)).permute(2, 0, 1)[None].float() / 255
    seg_t = torch.from_numpy(np.array(seg))[None, None].float() / 255
    return im_t, seg_t * 2 - 1


model = RefinementModule().eval()
im, seg = load()
with torch.no_grad():
    refined = safe_forward(model, im, seg)
