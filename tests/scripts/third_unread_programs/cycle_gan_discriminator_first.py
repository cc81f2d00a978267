import torch
import torch.nn as nn

torch.manual_seed(0)
g_A = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1))
d_A = nn.Sequential(nn.Conv2d(3, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 3, padding=1))
MSE, L1 = nn.MSELoss(), nn.L1Loss()
g_optimizer = torch.optim.Adam(g_A.parameters(), lr=2e-3)
d_optimizer = torch.optim.Adam(d_A.parameters(), lr=2e-3)
start = [p.clone() for p in list(g_A.parameters()) + list(d_A.parameters())]
for epoch in range(2):
    real_A, real_B = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    fake_A = g_A(real_B)
    pred_fake = d_A(fake_A)
    loss_G = MSE(pred_fake, torch.ones_like(pred_fake)) + L1(fake_A, real_B)
    pred_real = d_A(real_A)
    pred_fake_d = d_A(fake_A.detach())
    loss_D = (MSE(pred_real, torch.ones_like(pred_real)) + MSE(pred_fake_d, torch.zeros_like(pred_fake_d))) * 0.5

    d_optimizer.zero_grad()
    loss_D.backward()
    d_optimizer.step()

    g_optimizer.zero_grad()
    loss_G.backward()
    g_optimizer.step()
