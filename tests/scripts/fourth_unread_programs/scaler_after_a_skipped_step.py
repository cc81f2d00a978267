import torch
import torch.nn as nn

torch.manual_seed(0)


def train_one_epoch(model, iterator, optimizer, scaler, grad_clip=5.0):
    seen, skipped = [], 0
    for iiter, batch in enumerate(iterator):
        loss = model(batch).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        seen.append(iiter)
        if not torch.isfinite(grad_norm):
            skipped += 1
            optimizer.zero_grad()
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return seen, skipped


model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [torch.randn(3, 4) for _ in range(4)]
batches[1][0, 0] = float("inf")
seen, skipped = train_one_epoch(model, batches, optimizer, scaler)
