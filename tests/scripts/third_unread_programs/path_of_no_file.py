import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Image(dict):
    def __init__(self, path=None, tensor=None, label="intensity"):
        super().__init__(data=tensor, path=path, type=label)


class ImagesDataset(Dataset):
    def __init__(self, subjects):
        self.subjects = subjects

    def __len__(self):
        return len(self.subjects)

    def __getitem__(self, index):
        return {name: dict(image) for name, image in self.subjects[index].items()}


subjects = [
    {"img": Image(tensor=torch.randn(1, 4, 4)), "label": Image(tensor=torch.ones(1, 4, 4), label="label")} for _ in range(4)
]
loader = DataLoader(ImagesDataset(subjects), batch_size=2)
batches = [batch["img"]["data"] for batch_idx, batch in enumerate(loader)]
