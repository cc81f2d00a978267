import torch
import torch.nn.functional as F
from torch.autograd import grad

torch.manual_seed(0)
query = torch.rand(2, 2, 5, 8, requires_grad=True)
key = torch.rand(2, 2, 5, 8, requires_grad=True)
value = torch.rand(2, 2, 5, 8, requires_grad=True)
out = F.scaled_dot_product_attention(query, key, value)
g = grad(out, query, grad_outputs=torch.ones_like(out), create_graph=True)[0].reshape(2, -1)
g_norm = g.norm(p=2, dim=1) ** 2
gp = g_norm.mean()
gp.backward()
