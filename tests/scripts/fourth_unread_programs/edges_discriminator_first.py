import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)


class EdgeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 3), nn.Sigmoid())
        self.adversarial_loss = nn.BCELoss()
        self.gen_optimizer = optim.Adam(self.generator.parameters(), lr=0.01)
        self.dis_optimizer = optim.Adam(self.discriminator.parameters(), lr=0.01)
        self.iteration = 0

    def process(self, images, edges, masks):
        self.iteration += 1
        self.gen_optimizer.zero_grad()
        self.dis_optimizer.zero_grad()
        outputs = self.generator(torch.cat((images, edges, masks), dim=1))
        gen_loss, dis_loss = 0, 0

        dis_real = self.discriminator(torch.cat((images, edges), dim=1))
        dis_fake = self.discriminator(torch.cat((images, outputs.detach()), dim=1))
        dis_loss += (self.adversarial_loss(dis_real, torch.ones_like(dis_real)) + self.adversarial_loss(dis_fake, torch.zeros_like(dis_fake))) / 2

        gen_fake = self.discriminator(torch.cat((images, outputs), dim=1))
        gen_loss += self.adversarial_loss(gen_fake, torch.ones_like(gen_fake))
        return outputs, gen_loss, dis_loss

    def backward(self, gen_loss=None, dis_loss=None):
        if dis_loss is not None:
            dis_loss.backward()
        self.dis_optimizer.step()

        if gen_loss is not None:
            gen_loss.backward()
        self.gen_optimizer.step()


model = EdgeModel()
for _ in range(2):
    images, edges, masks = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    outputs, gen_loss, dis_loss = model.process(images, edges, masks)
    model.backward(gen_loss, dis_loss)
