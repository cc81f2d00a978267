import torch
import torch.nn as nn

torch.manual_seed(0)


class TextConditioner(nn.Module):
    def __init__(self, hidden_dim, vocab=50, dim=8):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.to_scale_shift = nn.Linear(dim, hidden_dim * 2)

    def forward(self, texts, repeat_batch):
        embeds = []
        for t in texts:
            ids = torch.tensor([[len(w) + ord(w[0]) % 30 for w in t.split()]])
            embeds.append(self.embed(ids))
        cond = torch.cat(embeds).repeat_interleave(repeat_batch, dim=0)
        scale, shift = self.to_scale_shift(cond).chunk(2, dim=-1)

        def film(hiddens):
            return hiddens * (scale[:, :, None, None] + 1) + shift[:, :, None, None]

        return film


class RT1(nn.Module):
    def __init__(self, num_actions=4, dim=6, bins=5):
        super().__init__()
        self.num_actions, self.bins = num_actions, bins
        self.vit = nn.Conv2d(3, dim, 4, stride=4)
        self.conditioner = TextConditioner(dim)
        self.to_logits = nn.Linear(dim, num_actions * bins)

    def forward(self, video, texts=None):
        b, c, f, h, w = video.shape
        images = video.transpose(1, 2).reshape(b * f, c, h, w)
        film = self.conditioner(texts, repeat_batch=f)
        tokens = film(self.vit(images))
        tokens = tokens.mean(dim=(-2, -1)).reshape(b, f, -1)
        return self.to_logits(tokens).reshape(b, f, self.num_actions, self.bins)


model = RT1()
video = torch.randn(8, 3, 10, 8, 8)
instructions = [
    'bring me that apple sitting on the table',
    'please pass the butter'
]
logits = model(video, instructions)
