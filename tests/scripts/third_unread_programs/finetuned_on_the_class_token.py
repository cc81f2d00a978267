import torch
import torch.nn as nn

torch.manual_seed(0)


class VisionTransformer(nn.Module):
    def __init__(self, embed_dim=24, num_classes=3):
        super().__init__()
        self.patch_embed = nn.Linear(48, embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.fc_norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward_features(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x[:, 0]
        return self.fc_norm(x.mean(1))

    def forward(self, x):
        x = self.forward_features(x)
        x = self.head(x)
        return x


model = VisionTransformer()
patches = torch.randn(12, 9, 48)
logits = model(patches)
