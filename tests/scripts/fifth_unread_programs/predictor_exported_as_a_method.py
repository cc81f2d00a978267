import torch
import torch.nn as nn

torch.manual_seed(0)


class SAM2Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.point_embeddings = nn.Embedding(2, 6)
        self.mask_decoder = nn.Linear(8, 4)

    def forward(self, coords, labels):
        return self.mask_decoder(torch.cat([coords, self.point_embeddings(labels)], dim=1))


class SAM2ImagePredictor:
    def __init__(self, sam_model, size=8):
        self.model = sam_model.eval()
        self.size = size

    def _predict(self, unnorm_coords, labels):
        return self.model(unnorm_coords, labels).sigmoid()

    def predict(self, point_coords, point_labels):
        unnorm_coords = point_coords / self.size
        labels = point_labels
        ep = torch.export.export(self._predict, (unnorm_coords, labels))
        return ep.module()(unnorm_coords, labels)


predictor = SAM2ImagePredictor(SAM2Base())
with torch.no_grad():
    masks = predictor.predict(torch.tensor([[4.0, 2.0]]), torch.tensor([1]))
