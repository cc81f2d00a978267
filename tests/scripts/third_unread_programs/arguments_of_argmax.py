import torch
import torch.nn as nn

torch.manual_seed(0)
coor_bin = 9
net = nn.Linear(6, 3 * coor_bin)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
feat = torch.randn(10, 6)
target_bin = torch.randint(0, coor_bin, (10, 3))
target = 2.0 * target_bin.float() / (coor_bin - 1.0) - 1.0
criterion = nn.L1Loss()

output = net(feat).view(10, 3, coor_bin)
output_coor_ = torch.argmax(output, dim=2)
output_coor_ = 2.0 * output_coor_.float() / (coor_bin - 1.0) - 1.0
loss = criterion(output_coor_, target)
optimizer.zero_grad()
loss.backward()
optimizer.step()
