import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
broken = {4, 6, 7, 8}


class VideoDataset(Dataset):
    def __init__(self, n):
        self.clips = torch.randn(n, 2, 3)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        if index in broken:
            # the file cannot be decoded
            return None
        return self.clips[index], index % 2


def collate_fn(batch):
    batch = list(filter(lambda x: x is not None, batch))
    return torch.utils.data.dataloader.default_collate(batch)


loader = DataLoader(VideoDataset(12), batch_size=3, collate_fn=collate_fn, shuffle=False)
seen = []
for clips, labels in loader:
    seen.append(clips.shape[0])
