import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class LoadImagesAndLabels(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((3, 4, 4), float(index)), torch.tensor([[0, index, 1, 1]])

    @staticmethod
    def collate_fn(batch):
        img, label = list(zip(*batch))
        return torch.stack(img, 0), torch.cat(label, 0)


world_size, rank = 2, 0
dataset = LoadImagesAndLabels()
# Initialize distributed training
if world_size > 1:
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=world_size, rank=rank)
else:
    sampler = None

# Dataloader
dataloader = DataLoader(dataset,
                        batch_size=2,
                        num_workers=0,
                        shuffle=True,
                        pin_memory=False,
                        collate_fn=dataset.collate_fn,
                        sampler=sampler)
seen = []
for imgs, targets in dataloader:
    seen += targets[:, 1].tolist()
