import torch

torch.manual_seed(0)
_POS_ALPHA = 0.0


def log_det_by_cholesky(matrix):
    chol = torch.linalg.cholesky(matrix)
    return 2.0 * torch.sum(torch.log(torch.diagonal(chol, dim1=-2, dim2=-1) + 1e-8), dim=-1)


labels = (torch.rand(2, 4, 30) > 0.5).double()
labels[1] = 1.0
la = labels - labels.mean(dim=2, keepdim=True)
la_cov = la @ la.transpose(1, 2)
diag_matrix = torch.eye(4).unsqueeze(0)
rmi_now = 0.5 * log_det_by_cholesky(la_cov + diag_matrix.type_as(la_cov) * _POS_ALPHA)
