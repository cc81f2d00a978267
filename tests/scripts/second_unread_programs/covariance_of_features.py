import torch

torch.manual_seed(0)


def centered_cov_torch(x):
    return x.t().mm(x) / (x.shape[0] - 1)


features = torch.randn(2, 6, 10)           # two classes with 6 samples of 10 features
classwise_mean_features = features.mean(1)
classwise_cov_features = torch.stack([centered_cov_torch(f - f.mean(0)) for f in features])
jitter = 0 * torch.eye(10)
gmm = torch.distributions.MultivariateNormal(
    loc=classwise_mean_features, covariance_matrix=(classwise_cov_features + jitter)
)
log_probs = gmm.log_prob(features[:, :1].transpose(0, 1))
