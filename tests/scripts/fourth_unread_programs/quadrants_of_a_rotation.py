import torch

torch.manual_seed(0)


def rotation_matrix_to_quaternion_masks(rotation_matrix, eps=1e-6):
    rmat_t = torch.transpose(rotation_matrix, 1, 2)
    mask_d2 = rmat_t[:, 2, 2] < eps
    mask_d0_d1 = rmat_t[:, 0, 0] > rmat_t[:, 1, 1]
    mask_d0_nd1 = rmat_t[:, 0, 0] < -rmat_t[:, 1, 1]
    mask_c0 = mask_d2 * mask_d0_d1
    mask_c1 = mask_d2 * (1 - mask_d0_d1)
    mask_c2 = (1 - mask_d2) * mask_d0_nd1
    mask_c3 = (1 - mask_d2) * (1 - mask_d0_nd1)
    return mask_c0, mask_c1, mask_c2, mask_c3


rotations = torch.linalg.qr(torch.randn(6, 3, 3))[0]
masks = rotation_matrix_to_quaternion_masks(rotations)
