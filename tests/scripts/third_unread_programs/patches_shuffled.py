import torch
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)


class PatchDataset(IterableDataset):
    def __init__(self, volumes, samples_per_image=2):
        self.volumes = volumes
        self.samples_per_image = samples_per_image

    def __iter__(self):
        for v in self.volumes:
            for s in range(self.samples_per_image):
                yield v[s]


patch_ds = PatchDataset(torch.arange(12.0).view(3, 4, 1))
train_loader = DataLoader(patch_ds, batch_size=3, shuffle=True, num_workers=0)
patches = torch.cat(list(train_loader))
