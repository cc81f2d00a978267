import torch

torch.manual_seed(0)


class kaggle2016nerve(torch.utils.data.Dataset):
    def __init__(self, train=True):
        self.train_set_path = [(f"{i}.tif", f"{i}_mask.tif") for i in range(6)]

    def __getitem__(self, idx):
        img_path, gt_path = self.train_set_path[idx]
        return torch.full((1, 4, 4), float(img_path.split(".")[0])), torch.zeros(4, 4)

    def __len__(self):
        return 5635


loader = torch.utils.data.DataLoader(kaggle2016nerve(), batch_size=2)
seen = [img.mean((1, 2, 3)) for img, gt in loader]
