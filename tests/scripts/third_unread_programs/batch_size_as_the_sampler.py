import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
train_dataset = TensorDataset(torch.arange(10.0))
train_sampler = RandomSampler(train_dataset)
train_batch_sampler = 4
train_data_loader = DataLoader(train_dataset, batch_sampler=train_batch_sampler, num_workers=0)
steps = len(train_data_loader)
seen = torch.cat([b[0] for b in train_data_loader])
