import torch

torch.manual_seed(0)
num_classes, ipc, channel, im_size = 3, 2, 1, (4, 4)
image_syn = torch.randn(size=(num_classes * ipc, channel, im_size[0], im_size[1]), dtype=torch.float, requires_grad=True) * 0.01
before = image_syn.detach().clone()
optimizer_img = torch.optim.SGD([image_syn], lr=0.1, momentum=0.5)
loss = (image_syn - 1).pow(2).sum()
optimizer_img.zero_grad()
loss.backward()
optimizer_img.step()
