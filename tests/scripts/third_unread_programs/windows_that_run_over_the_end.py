import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class GPTDatasetV1(Dataset):
    def __init__(self, token_ids, max_length, stride):
        self.input_ids = []
        self.target_ids = []
        for i in range(0, len(token_ids), stride):
            input_chunk = token_ids[i : i + max_length]
            target_chunk = token_ids[i + 1 : i + max_length + 1]
            self.input_ids.append(torch.tensor(input_chunk))
            self.target_ids.append(torch.tensor(target_chunk))

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, idx):
        return self.input_ids[idx], self.target_ids[idx]


token_ids = list(range(18))
dataloader = DataLoader(GPTDatasetV1(token_ids, max_length=4, stride=4), batch_size=8, shuffle=False)
inputs, targets = next(iter(dataloader))
