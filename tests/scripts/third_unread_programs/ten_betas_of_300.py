import torch

torch.manual_seed(0)


def blend_shapes(betas, shape_disps):
    blend_shape = torch.einsum("bl,mkl->bmk", [betas, shape_disps])
    return blend_shape


v_template = torch.randn(7, 3)
shapedirs = torch.randn(7, 3, 300)
betas = torch.randn(2, 10)
v_shaped = v_template + blend_shapes(betas, shapedirs)
