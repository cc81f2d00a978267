import torch
import torch.nn as nn

torch.manual_seed(0)


class PoseDataset:
    num_pt_mesh_large = 260
    num_pt_mesh_small = 50

    def __init__(self, refine):
        self.refine = refine
        self.vertices = torch.rand(400, 3)

    def get_num_points_mesh(self):
        return self.num_pt_mesh_large if self.refine else self.num_pt_mesh_small

    def __getitem__(self, index):
        keep = torch.randperm(len(self.vertices))[:self.get_num_points_mesh()]
        model_points = self.vertices[keep]
        return model_points + torch.tensor([0.1, 0.2, 0.3]), model_points


class Loss(nn.Module):
    def __init__(self, num_points_mesh):
        super().__init__()
        self.num_pt_mesh = num_points_mesh

    def forward(self, pred_t, target, model_points):
        bs, num_p, _ = pred_t.size()
        model_points = model_points.view(bs, 1, self.num_pt_mesh, 3).repeat(1, num_p, 1, 1)
        target = target.view(bs, 1, self.num_pt_mesh, 3).repeat(1, num_p, 1, 1)
        pred = model_points + pred_t.unsqueeze(2)
        return torch.mean(torch.norm(pred - target, dim=3))


dataset = PoseDataset(refine=False)
criterion = Loss(dataset.get_num_points_mesh())
best_test, refine_margin = 0.012, 0.013
if best_test < refine_margin:
    dataset = PoseDataset(refine=True)
target, model_points = (t.unsqueeze(0) for t in dataset[0])
pred_t = torch.zeros(1, 8, 3, requires_grad=True)
dis = criterion(pred_t, target, model_points)
dis.backward()
