import torch
import torch.nn as nn

torch.manual_seed(0)


class NetD(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 8, 4, 2, 1))
        self.classifier = nn.Linear(8, 1)

    def forward(self, x):
        feat = self.features(x)
        return torch.sigmoid(self.classifier(feat.mean((2, 3)))), feat


class Skipganomaly:
    def __init__(self):
        self.netg = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
        self.netd = NetD()
        self.l_adv, self.l_con, self.l_lat = nn.BCELoss(), nn.L1Loss(), nn.MSELoss()
        self.optimizer_g = torch.optim.Adam(self.netg.parameters(), lr=0.002)
        self.optimizer_d = torch.optim.Adam(self.netd.parameters(), lr=0.002)
        self.real_label, self.fake_label = torch.ones(5, 1), torch.zeros(5, 1)

    def forward(self):
        self.fake = self.netg(self.input)
        self.pred_real, self.feat_real = self.netd(self.input)
        self.pred_fake, self.feat_fake = self.netd(self.fake)

    def backward_g(self):
        self.err_g_adv = self.l_adv(self.pred_fake, self.real_label)
        self.err_g_con = self.l_con(self.fake, self.input)
        self.err_g_lat = self.l_lat(self.feat_fake, self.feat_real)
        self.err_g = self.err_g_adv + 50 * self.err_g_con + self.err_g_lat
        self.err_g.backward(retain_graph=True)

    def backward_d(self):
        pred_fake, _ = self.netd(self.fake.detach())
        self.err_d_fake = self.l_adv(pred_fake, self.fake_label)
        self.err_d_real = self.l_adv(self.pred_real, self.real_label)
        self.err_d_lat = self.l_lat(self.feat_fake, self.feat_real)
        self.err_d = self.err_d_real + self.err_d_fake + self.err_d_lat
        self.err_d.backward(retain_graph=True)

    def optimize_params(self, x):
        self.input = x
        self.forward()
        self.optimizer_g.zero_grad()
        self.backward_g()
        self.optimizer_g.step()
        self.optimizer_d.zero_grad()
        self.backward_d()
        self.optimizer_d.step()


model = Skipganomaly()
start = [p.clone() for p in list(model.netg.parameters()) + list(model.netd.parameters())]
for _ in range(2):
    model.optimize_params(torch.randn(5, 1, 8, 8))
