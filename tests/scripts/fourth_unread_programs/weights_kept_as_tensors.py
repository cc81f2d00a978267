import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Decomp_Net(nn.Module):
    def __init__(self, path_pretrained_model="mymodel.pth"):
        super(Decomp_Net, self).__init__()
        params = torch.load(path_pretrained_model)
        self.W_conv1 = params['W_conv1']
        self.B_conv1 = params['B_conv1']

    def forward(self, x):
        return F.relu(F.conv2d(x, self.W_conv1, self.B_conv1))


torch.save({'W_conv1': torch.rand(4, 1, 3, 3), 'B_conv1': torch.rand(4)}, "mymodel.pth")
model = Decomp_Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
