import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)


class Collator:
    def __call__(self, batch):
        texts = []
        images = []
        for image, text in batch:
            images.append(image)
            texts.append(text)
        images = torch.stack(images)
        texts = torch.stack(texts)
        return images, texts


ds = [(torch.randn(3, 4, 4), torch.full((n, 6), float(n))) for n in (5, 3, 2, 4)]
dl = DataLoader(ds, batch_size=2, collate_fn=Collator())
batches = list(dl)
