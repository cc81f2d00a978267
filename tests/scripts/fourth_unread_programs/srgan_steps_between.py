import torch
import torch.nn as nn

torch.manual_seed(0)
netG = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(), nn.Conv2d(4, 3, 3, padding=1))
netD = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 8, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 1), nn.Sigmoid())
before_D, before_G = netD[0].weight.detach().clone(), netG[0].weight.detach().clone()
optimizerG = torch.optim.Adam(netG.parameters())
optimizerD = torch.optim.Adam(netD.parameters())
steps = 0
for _ in range(3):
    target = torch.rand(2, 3, 8, 8)
    z = torch.rand(2, 3, 8, 8)
    fake_img = netG(z)

    netD.zero_grad()
    real_out = netD(target).mean()
    fake_out = netD(fake_img).mean()
    d_loss = 1 - real_out + fake_out
    d_loss.backward(retain_graph=True)
    optimizerD.step()

    netG.zero_grad()
    g_loss = (1 - fake_out) + (fake_img - target).pow(2).mean()
    g_loss.backward()
    optimizerG.step()
    steps += 1
