"""Draw the pictures of a page: ``.venv/bin/python docs/images/make_report.py``.

A small network learns handwritten digits, until a division by zero in step 240 makes NaN. Needs
Chromium and Playwright.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import torchtap as tt
from torchtap.runs.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from browser import Visit, chromium

HERE = Path(__file__).parent


def main() -> None:
    """Entry point of the script."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = tt.report(trained(), Path(folder) / "page.html", title="Handwritten digits")
        for scheme, name in (("light", "report.png"), ("dark", "report_dark.png")):
            visit = Visit(browser, page, color_scheme=scheme)
            visit.page.set_viewport_size({"width": 1280, "height": 760})
            visit.goto("site=3%3Agrad_output&step=230")
            visit.page.wait_for_timeout(300)
            visit.page.screenshot(path=HERE / name)
            visit.close()
            picture = Image.open(HERE / name).convert("RGB")
            picture.quantize(128, dither=Image.Dither.NONE).save(HERE / name, optimize=True)


def trained() -> Run:
    """A training of 250 steps that ends in NaN."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    classes = torch.tensor(digits.target)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    where = "*:output,grad_output,param,param_grad,update"
    with tt.watch(net, where, to=tt.Stats()) as w:
        for step in range(250):
            rows = torch.randint(0, len(images), (64,))
            x = images[rows] / 0 if step == 240 else images[rows]
            loss = nn.functional.cross_entropy(net(x), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss.item())
            w.step()
    return w.run


if __name__ == "__main__":
    main()
