import os

import torch
import torch.nn as nn

torch.manual_seed(0)


class ClassBlock(nn.Module):
    def __init__(self, input_dim, class_num, num_bottleneck=8):
        super(ClassBlock, self).__init__()
        self.add_block = nn.Sequential(nn.Linear(input_dim, num_bottleneck), nn.BatchNorm1d(num_bottleneck))
        self.classifier = nn.Sequential(nn.Linear(num_bottleneck, class_num))

    def forward(self, x):
        return self.classifier(self.add_block(x))


class ft_net(nn.Module):
    def __init__(self, class_num):
        super(ft_net, self).__init__()
        self.model = nn.Linear(12, 16)
        self.classifier = ClassBlock(16, class_num)

    def forward(self, x):
        return self.classifier(torch.relu(self.model(x)))


# train.py
trained = ft_net(156)
os.makedirs('model', exist_ok=True)
torch.save(trained.state_dict(), os.path.join('model', 'net_last.pth'))


# test.py
def load_network(network):
    save_path = os.path.join('model', 'net_%s.pth' % 'last')
    network.load_state_dict(torch.load(save_path))
    return network


model_structure = ft_net(751)
model = load_network(model_structure)
model.classifier.classifier = nn.Sequential()
model = model.eval()
with torch.no_grad():
    features = model(torch.randn(3, 12))
