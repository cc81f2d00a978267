import torch

annotations = [
    {'boxes': [[1, 1, 4, 4]], 'labels': [1]},
    {'boxes': [], 'labels': []},
    {'boxes': [[0, 0, 2, 2], [3, 3, 6, 6]], 'labels': [1, 2]},
]


def expand(image, boxes, left=2, top=1):
    original_h, original_w = image.size(1), image.size(2)
    new_image = torch.zeros(3, original_h + 4, original_w + 4)
    new_image[:, top:top + original_h, left:left + original_w] = image
    new_boxes = boxes + torch.FloatTensor([left, top, left, top]).unsqueeze(0)
    return new_image, new_boxes


class PascalVOCDataset(torch.utils.data.Dataset):
    def __len__(self):
        return len(annotations)

    def __getitem__(self, i):
        image = torch.ones(3, 8, 8)
        objects = annotations[i]
        boxes = torch.FloatTensor(objects['boxes'])
        labels = torch.LongTensor(objects['labels'])
        image, boxes = expand(image, boxes)
        return image, boxes, labels


def collate_fn(batch):
    return list(batch)


loader = torch.utils.data.DataLoader(PascalVOCDataset(), batch_size=3, collate_fn=collate_fn)
for batch in loader:
    for image, boxes, labels in batch:
        assert image.shape == (3, 12, 12)
