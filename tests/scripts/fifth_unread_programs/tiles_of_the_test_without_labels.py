import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class FLAIR2Dataset(Dataset):
    def __init__(self, list_images, is_test=False):
        self.list_images = list_images
        self.is_test = is_test
        self.aerial = {name: torch.randn(5, 4, 4) for name in list_images}
        self.masks = {name: torch.randint(0, 3, (4, 4)) for name in list_images}

    def __len__(self):
        return len(self.list_images)

    def read_labels(self, image_id):
        return self.masks[image_id]

    def __getitem__(self, idx):
        image_id = self.list_images[idx]
        aerial = self.aerial[image_id]
        sen = aerial.mean((1, 2))
        if not self.is_test:
            labels = self.read_labels(image_id)
        else:
            labels = None
        return image_id, aerial, sen, labels


model = nn.Conv2d(5, 3, 1)
train = DataLoader(FLAIR2Dataset(['IMG_0', 'IMG_1', 'IMG_2']), batch_size=3)
for image_id, aerial, sen, labels in train:
    nn.functional.cross_entropy(model(aerial), labels).backward()

test = DataLoader(FLAIR2Dataset(['IMG_3', 'IMG_4', 'IMG_5'], is_test=True), batch_size=3)
ids, preds = [], []
with torch.no_grad():
    for image_id, aerial, sen, labels in test:
        ids += image_id
        preds.append(model(aerial).argmax(1))
preds = torch.cat(preds)
