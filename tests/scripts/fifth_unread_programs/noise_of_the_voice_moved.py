import torch
import torch.nn as nn

torch.manual_seed(0)


class RandomCNN(nn.Module):
    def __init__(self):
        super(RandomCNN, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=(3, 1), stride=1, padding=0)
        self.leaky = nn.LeakyReLU(0.2)

    def forward(self, x_delta):
        return self.leaky(self.conv1(x_delta))


def gram(features):
    c = features.shape[1]
    f = features.permute(0, 1, 3, 2).reshape(c, -1)
    return f @ f.t()


a_content = torch.randn(1, 1, 12, 9, dtype=torch.float64)
a_style = torch.randn(1, 1, 12, 9, dtype=torch.float64)
model = RandomCNN().double()
a_G_var = torch.randn(a_content.shape, requires_grad=True).to(torch.float64) * 1e-1
optimizer = torch.optim.Adam([a_G_var], lr=0.01)
hist = []
for epoch in range(20):
    optimizer.zero_grad()
    a_G = model(a_G_var)
    content_loss = (a_G - model(a_content).detach()).pow(2).mean()
    style_loss = (gram(a_G) - gram(model(a_style)).detach()).pow(2).mean()
    loss = content_loss + 1e-3 * style_loss
    loss.backward()
    optimizer.step()
    hist.append(loss.item())
