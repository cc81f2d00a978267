import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(6, 12)
crit = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for iteration in range(2):
    fc_feats, labels = torch.randn(4, 6), torch.randint(0, 12, (4,))
    optimizer.zero_grad()
    seq_probs = model(fc_feats)
    loss = crit(seq_probs, labels)
    loss.backward()
    optimizer.step()
    train_loss = loss.data[0]
    print("iter %d, train_loss = %.6f" % (iteration, train_loss))
