"""Measures editing: ratios of edited to plain, both measured in turns in one run.

    python benchmarks/editing.py [--threads 1] [--rounds 25] [--markdown FILE]

As in ``watching.py``, each row alternates blocks of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from report import HOW, Result, Step, begin, compare, parser, show
from torch import Tensor, nn
from watching import TinyGPT, gpt_step

import torchtap as tt
from torchtap.cli.demo import _model as load_efficientnet


def nothing(tensor: Tensor, record: tt.Record) -> None:
    """An edit that leaves everything as it is."""


def none_edits(rounds: int) -> list[Result]:
    """An edit that returns ``None``, beside a tap, at every output of the tiny GPT."""
    rows = []
    for where in ("*:output", "*:grad_output"):
        tapped, edited, bare = TinyGPT(), TinyGPT(), gpt_step(TinyGPT())
        tap, step = gpt_step(tapped), gpt_step(edited)
        kept: list[tt.Record] = []
        with tt.watch(tapped, where, to=kept.append) as w, tt.edit(edited, where, nothing):

            def watched(w: tt.Watch = w, tap: Step = tap, kept: list[tt.Record] = kept) -> None:
                tap()
                w.step()
                kept.clear()

            for _ in range(3):
                watched()
                step()
            found = compare(watched, step, rounds=rounds, repeats=20)
            tap_to_plain = compare(bare, watched, rounds=rounds, repeats=20).ratio
            edit_to_plain = compare(bare, step, rounds=rounds, repeats=20).ratio
        more = f"; to plain: tap {tap_to_plain:.3f}x, edit {edit_to_plain:.3f}x"
        rows.append(found.result(f"{where}, edit of None to tap", "1.00", more))
    return rows


def one_site(rounds: int) -> list[Result]:
    """One site of a GPT of a hundred modules edited, and the step of the edit closed."""
    model = TinyGPT(layers=14)
    paths = [path for path, _ in model.named_modules()]
    step, where = gpt_step(model), paths[len(paths) // 2]
    close: list[Callable[[], object]] = [lambda: None]

    def closed() -> None:
        step()
        close[-1]()

    def by_hand() -> Iterator[None]:
        handle = model.get_submodule(where).register_forward_hook(_times_one)
        yield
        handle.remove()

    rows = []
    for port in ("output", "grad_output"):

        def edited(port: str = port) -> Iterator[None]:
            with tt.edit(model, f"{where}:{port}", tt.edits.scale(1.0)) as e:
                close.append(e.step)
                yield
                close.pop()

        found = compare(closed, closed, rounds=rounds, repeats=4, inside=contextmanager(edited))
        more = f"; {found.more * 1e6:.0f} us more"
        if port == "output":
            hand = compare(closed, closed, rounds=rounds, repeats=4, inside=contextmanager(by_hand))
            more += f"; a bare hook that multiplies: {hand.more * 1e6:.0f} us"
        name = f"GPT of {len(paths)} modules, scale on one {port}"
        rows.append(found.result(name, "1.02", more))
    return rows


def scaled_gpt(rounds: int) -> Result:
    """Every output of the tiny GPT multiplied."""
    plain, model = gpt_step(TinyGPT()), TinyGPT()
    step = gpt_step(model)
    with tt.edit(model, "*", tt.edits.scale(1.0)):
        step()
        found = compare(plain, step, rounds=rounds, repeats=20)
    hand = TinyGPT()
    for module in hand.modules():
        if type(module).forward is not nn.Module.forward:
            module.register_forward_hook(_times_one)
    by_hand = compare(plain, gpt_step(hand), rounds=rounds, repeats=20).ratio
    more = f"; bare hooks that multiply: {by_hand:.3f}x"
    return found.result("tiny GPT, scale on every output", "1.30", more)


def _times_one(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output * 1.0


def early_features(rounds: int) -> Result:
    """Features of an early block of EfficientNet-Lite0, beside running only that part."""
    model = load_efficientnet()
    picture = torch.randn(1, 3, 224, 224)
    extract = tt.features(model, "_blocks.2")
    with torch.no_grad():
        part = nn.Sequential(model._conv_stem, model._bn0, nn.ReLU6(), *model._blocks[:3])
        assert torch.allclose(extract(picture)["_blocks.2"], part(picture), atol=1e-5)
        found = compare(lambda: part(picture), lambda: extract(picture), rounds=rounds, repeats=4)
    return found.result("features, EfficientNet-Lite0 block 2", "1.05")


def swept_gpt(rounds: int) -> Result:
    """100 sites of a tiny GPT zeroed one by one, beside the loop written by hand."""
    model = TinyGPT(layers=14).eval()
    tokens = torch.randint(0, 65, (4, 32))
    paths = [
        path
        for path, module in model.named_modules()
        if type(module).forward is not nn.Module.forward
    ][:100]
    assert len(paths) == 100

    def metric(logits: Tensor) -> float:
        return float(logits.logsumexp(-1).mean())

    def by_hand() -> list[float]:
        values = []
        modules = dict(model.named_modules())
        for path in paths:
            handle = modules[path].register_forward_hook(lambda m, a, out: torch.zeros_like(out))
            with torch.no_grad():
                values.append(metric(model(tokens)))
            handle.remove()
        return values

    where = [path or "." for path in paths]

    def swept(batch: int = 1) -> list[float]:
        table = tt.sweep(model, tokens, where, tt.edits.zero(), metric, batch=batch)
        return [row.values["metric"] for row in table]

    assert torch.allclose(torch.tensor(swept()), torch.tensor(by_hand()), rtol=1e-5)
    found = compare(by_hand, swept, rounds=max(rounds // 5, 3), repeats=1)
    batched = compare(by_hand, lambda: swept(4), rounds=max(rounds // 5, 3), repeats=1)
    detail = (
        f"{found.before * 10:.2f} ms -> {found.after * 10:.2f} ms a site, control "
        f"{found.control:.3f}x; batch=4: {1 / batched.ratio:.2f}x"
    )
    return Result(
        "sweep over 100 sites, speed to loop", f"{1 / found.ratio:.3f}x", ">= 0.9", detail
    )


def main() -> None:
    options = begin(parser(__doc__))
    rows = [
        *none_edits(options.rounds),
        *one_site(4 * options.rounds),
        scaled_gpt(options.rounds),
        early_features(options.rounds),
        swept_gpt(options.rounds),
    ]
    show(rows, options, "What editing costs", __file__, HOW)


if __name__ == "__main__":
    main()
