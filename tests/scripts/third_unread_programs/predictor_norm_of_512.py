import torch
import torch.nn as nn

torch.manual_seed(0)
rep_dim, pred_hid = 16, 32
predictor = nn.Sequential(nn.Linear(rep_dim, pred_hid), nn.BatchNorm1d(rep_dim), nn.PReLU(), nn.Linear(pred_hid, rep_dim))
v1_online = torch.randn(10, rep_dim)
pred = predictor(v1_online)
