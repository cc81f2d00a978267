import torch

torch.manual_seed(0)
JITTERS = [1e-12]


def centered_cov_torch(x):
    n = x.shape[0]
    return 1 / (n - 1) * x.t().mm(x)


def gmm_fit(embeddings, labels, num_classes):
    classwise_mean_features = torch.stack([embeddings[labels == c].mean(dim=0) for c in range(num_classes)])
    classwise_cov_features = torch.stack([
        centered_cov_torch(embeddings[labels == c] - classwise_mean_features[c]) for c in range(num_classes)
    ])
    for jitter_eps in JITTERS:
        jitter = jitter_eps * torch.eye(classwise_cov_features.shape[1]).unsqueeze(0)
        gmm = torch.distributions.MultivariateNormal(
            loc=classwise_mean_features, covariance_matrix=(classwise_cov_features + jitter),
        )
    return gmm, jitter_eps


feats = torch.relu(torch.randn(12, 16) @ torch.randn(16, 8))
labels = torch.arange(12) % 2
feats = torch.cat([feats[:, :4], feats[:, :4]], dim=1)
gmm, eps = gmm_fit(feats, labels, 2)
log_probs = gmm.log_prob(feats[:, None, :])
