import torch

torch.manual_seed(0)


class Scheduler:
    gamma = 1 / 3


class PyramidDiTForVideoGeneration:
    def __init__(self):
        self.scheduler = Scheduler()

    def sample_block_noise(self, bs, ch, temp, height, width):
        gamma = self.scheduler.gamma
        cov = torch.eye(4) * (1 + gamma) - torch.ones(4, 4) * gamma
        dist = torch.distributions.multivariate_normal.MultivariateNormal(torch.zeros(4), cov)
        block_number = bs * ch * temp * (height // 2) * (width // 2)
        noise = torch.stack([dist.sample() for _ in range(block_number)])
        noise = noise.view(bs, ch, temp, height // 2, width // 2, 2, 2)
        return noise.permute(0, 1, 2, 3, 5, 4, 6).reshape(bs, ch, temp, height, width)


model = PyramidDiTForVideoGeneration()
noise = model.sample_block_noise(1, 2, 3, 8, 8)
