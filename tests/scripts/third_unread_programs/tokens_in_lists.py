import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class TextCompletionDataset(Dataset):
    def __init__(self, lines, max_seq_len):
        self.lines = lines
        self.max_seq_len = max_seq_len

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        tokens = [ord(c) for c in self.lines[index]][: self.max_seq_len]
        return {"tokens": tokens, "labels": tokens.copy()}


dataset = TextCompletionDataset(["to be", "or not to be", "that is"], max_seq_len=10)
dataloader = DataLoader(dataset, batch_size=3, shuffle=False)
batch = next(iter(dataloader))
