import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class ImageLabelDataset(Dataset):
    def __init__(self, images, tags):
        self.images = images
        self.tags = tags

    def __len__(self):
        return len(self.images)

    def read_tags(self, path):
        return self.tags.get(path)

    def __getitem__(self, index):
        path = self.images[index]
        return torch.full((3, 2, 2), float(index)), self.read_tags(path)


tags = {"a.png": "1girl, autumn", "c.png": "wolf, tail"}
data = ImageLabelDataset(["b.png", "a.png", "c.png", "d.png"], tags)
batches = list(DataLoader(data, batch_size=2))
