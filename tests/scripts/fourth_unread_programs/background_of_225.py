import torch
import torch.nn as nn

torch.manual_seed(0)


class Masks(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        label = torch.randint(0, 3, (6, 6), generator=generator)
        label[0] = 225
        return torch.rand(3, 6, 6, generator=generator), label


model = nn.Conv2d(3, 3, 1)
criterion = nn.CrossEntropyLoss(ignore_index=255, reduction='mean')
for images, labels in torch.utils.data.DataLoader(Masks(), batch_size=4):
    outputs = model(images)
    loss = criterion(outputs, labels)
    loss.backward()
