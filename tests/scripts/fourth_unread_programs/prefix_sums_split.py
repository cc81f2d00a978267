import torch
from torch.utils import data

torch.manual_seed(0)


def get_dataloaders(dataset, train_split=0.8, train_batch_size=4):
    train_split = train_split
    trainset, valset = data.random_split(
        dataset,
        [int(train_split * len(dataset)), int((1 - train_split) * len(dataset))],
        generator=torch.Generator().manual_seed(42),
    )
    return trainset, valset


inputs = torch.randint(0, 2, (13, 8))
trainset, valset = get_dataloaders(data.TensorDataset(inputs, inputs.cumsum(1) % 2))
