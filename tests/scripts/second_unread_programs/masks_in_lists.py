import torch

torch.manual_seed(0)


class LogDataset(torch.utils.data.Dataset):
    def __init__(self, corpus, window=4):
        self.corpus, self.window = corpus, window

    def __len__(self):
        return len(self.corpus)

    def __getitem__(self, item):
        keys = self.corpus[item][:self.window]
        inputs = keys + [0] * (self.window - len(keys))
        masks = [1] * len(keys) + [0] * (self.window - len(keys))
        return torch.tensor(inputs), masks, len(keys)

    def collate_fn(self, batch):
        inputs, masks, seq_len = zip(*batch)
        return torch.stack(inputs), torch.stack(masks), torch.tensor(seq_len, dtype=torch.long)


data = LogDataset([[3, 4, 5], [6, 7, 8, 9], [2]])
loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=data.collate_fn)
inputs, masks, seq_len = next(iter(loader))
