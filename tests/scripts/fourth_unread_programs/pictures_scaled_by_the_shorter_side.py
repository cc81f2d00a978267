import torch
import torch.nn.functional as F

torch.manual_seed(0)


class Scale:
    def __init__(self, size):
        self.size = size

    def __call__(self, img):
        h, w = img.shape[1:]
        scale = min(h, w)
        size = (int(h * self.size / scale), int(w * self.size / scale))
        return F.interpolate(img[None], size=size)[0]


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.samples = [torch.rand(3, 12, 16), torch.rand(3, 16, 12), torch.rand(3, 12, 12), torch.rand(3, 10, 20)]
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(self.samples[index]), index % 2

    def __len__(self):
        return len(self.samples)


transform_test = Scale(8)
testset = ImageFolder(transform=transform_test)
test_loader = torch.utils.data.DataLoader(testset, batch_size=4)
loader = iter(test_loader)
x, y = next(loader)
