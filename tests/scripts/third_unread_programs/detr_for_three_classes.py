import io

import torch
import torch.nn as nn

torch.manual_seed(0)


class UPDETR(nn.Module):
    def __init__(self, num_classes, hidden_dim=8):
        super().__init__()
        self.transformer = nn.Linear(hidden_dim, hidden_dim)
        self.class_embed = nn.Linear(hidden_dim, num_classes)
        self.bbox_embed = nn.Linear(hidden_dim, 4)

    def forward(self, x):
        hs = torch.relu(self.transformer(x))
        return {"pred_logits": self.class_embed(hs), "pred_boxes": self.bbox_embed(hs).sigmoid()}


coco = UPDETR(92)
file = io.BytesIO()
torch.save({"model": coco.state_dict(), "epoch": 300}, file)
file.seek(0)

model = UPDETR(num_classes=3)
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["model"])
out = model(torch.randn(2, 5, 8))
