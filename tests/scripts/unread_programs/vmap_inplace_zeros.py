import torch


def quad_error_fn(maps_opt, maps_ij):
    size = maps_ij.shape[0]
    error = torch.zeros(2 * size)
    for i in range(2):
        error[i * size:(i + 1) * size] = maps_ij * maps_opt[i] - maps_opt[1 - i]
    return error


torch.manual_seed(0)
maps_opt, maps_ij = torch.randn(5, 2), torch.randn(3)
errors = torch.vmap(quad_error_fn, in_dims=(0, None))(maps_opt, maps_ij)
