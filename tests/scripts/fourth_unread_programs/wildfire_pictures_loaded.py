import torch
from torch.utils.data import DataLoader, Dataset


class PILImage:
    def __init__(self, path):
        self.rows = [[len(path)] * 3 for _ in range(3)]


class VisionMixin:
    def load_image(self, path, to_tensor=False):
        image = PILImage(path)
        if to_tensor:
            return torch.tensor(image.rows).float() / 255
        return image


class WildFireDataset(VisionMixin, Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.load_image(self.paths[index]), index


wildfire_loader_train = DataLoader(WildFireDataset(["0.jpg", "10.jpg"]), batch_size=2)
for i, (images, labels) in enumerate(wildfire_loader_train):
    labels = labels.squeeze()
