import torch
import torch.utils.data

torch.manual_seed(0)
dataset = [(torch.zeros(3, 8, 8), torch.full((i, 4), float(i))) for i in range(1, 3)]
loader = torch.utils.data.DataLoader(dataset=dataset, batch_size=2)
boxes = []
for images, targets in loader:
    boxes.extend(targets)
