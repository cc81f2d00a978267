"""Bad input is refused at once: where, what was found, what was expected, a way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import TinyGPT, seeded
from torch import nn

import torchtap as tt
from torchtap.core.ports import PORTS


def gpt() -> nn.Module:
    return seeded(lambda: TinyGPT(vocab=11, d=16, layers=2, heads=2, context=8))


def linear() -> nn.Linear:
    return nn.Linear(2, 2)


# --- where ------------------------------------------------------------------------------------

MISSPELT = [
    ("nope", "TinyGPT has no module 'nope'; it has '"),
    ("blocks.1.atn", "TinyGPT has no module 'blocks.1.atn'; did you mean 'blocks.1.attn'"),
    (
        "blocks.1.atn:grad_output",
        "no module 'blocks.1.atn'; did you mean 'blocks.1.attn:grad_output' or ",
    ),
    ("hed", "no module 'hed'; did you mean 'head'"),
    ("block.0.ln1", "did you mean 'blocks.0.ln1'"),
    ("attn", "did you mean 'blocks.0.attn'"),
    ("blocks.*.atn", "no module 'blocks.*.atn'; did you mean 'blocks."),
    ("@Conv2d", "no module of class 'Conv2d'."),
    ("@Lineer", "no module of class 'Lineer'; did you mean '*@Linear'?"),
    ("tok@Linear", "no module 'tok' of class 'Linear'; it is an Embedding: write 'tok'."),
    ("hed@Linear:input", "of class 'Linear'; did you mean 'head@Linear:input'?"),
    ("Linear", "no module 'Linear'; Linear is a class: write '*@Linear'."),
    ("linear:input", "Linear is a class: write '*@Linear:input'."),
    ("head,tok", "Several patterns are a list: write ['head', 'tok']."),
    ("!head, tok", "write ['!head', '!tok']."),
    ("head,tok:grad_output", "write ['head:grad_output', 'tok:grad_output']."),
    ("head:output,tok:input", "write ['head:output', 'tok:input']."),
    ("head.output", "output is a port: write 'head:output'."),
    ("head.weight", "it is a param: write 'head:param[weight]' or 'head:param_grad[weight]'."),
    ("head:input:output", "Ports stand behind one colon: write 'head:input,output'."),
    ("head@", "A class name stands after the @: write 'head@"),
    ("head:", "'head:' ends in a colon and names no port"),
    ("head:output[", "'head:output[' has brackets without a leaf"),
    ("head[0]", "A leaf stands after a port: write 'head:output[0]'."),
    ("head:outptu", "no port 'outptu' (in 'head:outptu'); did you mean 'output'"),
    ("head:grad", "no port 'grad'"),
    ("head:param[wieght]", "at 'head:param[wieght]'; did you mean 'head:param[weight]'?"),
    ("*.ln1:param_grad[bais]", "; did you mean '*.ln1:param_grad[bias]'?"),
    ("head:buffer", "no parameter or buffer at 'head:buffer'. There is: 'head:param'."),
    ("*:buffer", "no parameter or buffer at '*:buffer'"),
    ("re:blocks.[", "'re:blocks.[' is not a regular expression"),
    ("", "The pattern '' has no path. Write '*'"),
    (["head", "hed"], "no module 'hed'"),
    (["*", "!hed"], "no module 'hed'; did you mean '!head'?"),
    (["head", "!head"], "everything was taken away"),
    (lambda site, module: False, "the function chose none"),
]


@pytest.mark.parametrize(("where", "message"), MISSPELT)
def test_what_names_nothing_is_reported_with_what_is_near(where: Any, message: str) -> None:
    with pytest.raises(tt.SiteError) as caught:
        tt.watch(gpt(), where)
    assert message in str(caught.value)


class Marking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tt.mark(self.fc(x), "hid").relu()


PLACES = re.compile(r"'([^' ]+)'")


@pytest.mark.parametrize("where", [w for w, _ in MISSPELT if isinstance(w, str) and w])
def test_what_is_suggested_can_be_pasted(where: str) -> None:
    with pytest.raises(tt.SiteError) as caught:
        tt.watch(gpt(), where)
    _, _, said = str(caught.value).rpartition("did you mean ")
    said = said.rpartition("write ")[2].rpartition("Write ")[2].rpartition("There is: ")[2]
    for suggested in PLACES.findall(said) if said != str(caught.value) else ():
        if suggested not in PORTS:
            tt.watch(gpt(), suggested).close()


@pytest.mark.parametrize(
    "where", ["hid:input", "hid:grad_input,output", "hid:param", "hid:output[1]"]
)
@pytest.mark.parametrize("ask", [tt.watch, lambda m, w: tt.edit(m, w, tt.edits.zero())])
def test_a_mark_says_which_ports_it_has(ask: Any, where: str) -> None:
    if "param" in where and ask is not tt.watch:
        pytest.skip("No parameter can be edited, of nothing.")
    with pytest.raises(tt.SiteError) as caught:
        ask(Marking(), where)
    said = str(caught.value)
    assert "no module 'hid'" in said
    assert "write 'hid:output' or 'hid:grad_output'" in said


def test_a_mark_has_what_a_star_asks_for() -> None:
    x = torch.ones(1, 2)
    model = Marking()
    with tt.watch(model, "hid:*") as w:
        model(x).sum().backward()
    assert set(map(str, w.run.sites)) == {"hid:output", "hid:grad_output"}


def test_a_misspelt_mark_is_reported_with_one_full_stop() -> None:
    model = Marking()
    with pytest.raises(tt.EditError) as caught, tt.edit(model, "hidd", tt.edits.zero()):
        model(torch.ones(1, 2))
    assert "no tt.mark of that name was reached; did you mean 'hid'? If that" in str(caught.value)
    with pytest.raises(tt.CaptureError, match="reached; did you mean 'hid'"):
        tt.features(model, "hidd")(torch.ones(1, 2))


@pytest.mark.parametrize("name", ["", ".", 3, None, *(f"a{sign}b" for sign in "*?[]:!@"), "re:x"])
def test_a_mark_that_no_pattern_would_find_is_refused(name: Any) -> None:
    with pytest.raises(tt.InputError, match=r"tt\.mark got the name .*; expected"):
        tt.mark(torch.ones(1), name)


@pytest.mark.parametrize("name", ["hidden", "blocks.0.scores", "up-2", "ä"])
def test_other_names_of_marks_are_found(name: str) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tt.mark(2 * x, name)

    with tt.watch(model := Named(), name) as w:
        model(torch.ones(1))
    assert w.run[name].item() == 2


@pytest.mark.parametrize(
    "function", [lambda site: True, lambda: True, lambda site, module, leaf: True]
)
def test_a_function_of_other_arguments_is_refused(function: Any) -> None:
    with pytest.raises(tt.InputError, match="expected one of two arguments, as in lambda site, mo"):
        tt.watch(gpt(), function)


def test_a_leaf_that_does_not_come_is_reported_with_those_that_do() -> None:
    model = nn.LSTM(2, 2)
    with tt.watch(model, ".:output[2]") as w:
        model(torch.ones(1, 1, 2))
    assert ".:output[0]" in str(w.absent)


def test_a_module_of_another_model_is_refused() -> None:
    with pytest.raises(
        tt.SiteError, match=r"given Linear is not a module of this TinyGPT.*get_sub"
    ):
        tt.watch(gpt(), linear())


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (3, "where is 3; expected a pattern"),
        ([], "where is []; expected a pattern"),
        (None, "where is None; expected a pattern"),
        ([3], "where holds 3, which is no pattern, module, class or function"),
        (int, "int is not a module class"),
        (["head", None], "where holds None"),
    ],
)
def test_what_cannot_select_is_refused(where: Any, message: str) -> None:
    with pytest.raises(tt.InputError) as caught:
        tt.watch(gpt(), where)
    assert message in str(caught.value)


def test_a_function_that_raises_is_reported_and_leaves_nothing() -> None:
    model = gpt()

    def chooses(site: tt.Site, module: nn.Module) -> bool:
        raise ZeroDivisionError("while choosing")

    with pytest.raises(ZeroDivisionError, match="while choosing"):
        tt.watch(model, chooses)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_ports_that_an_error_offers_can_all_be_watched() -> None:
    with pytest.raises(tt.SiteError) as caught:
        tt.watch(gpt(), "head:savd")
    said = str(caught.value)
    assert "did you mean 'saved'?" in said
    offered = said.partition("Ports are ")[2].partition(";")[0].split(", ")
    assert offered[:2] == ["input", "output"]
    for port in offered:
        tt.watch(gpt(), f"*:output,{port}").close()


# --- the other arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("model", [None, 3, linear, nn.Linear, [linear()], torch.ones(1)])
def test_what_is_no_module_is_refused(model: Any) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "watch": lambda: tt.watch(model),
        "edit": lambda: tt.edit(model, "0", tt.edits.zero()),
        "summary": lambda: tt.summary(model),
        "saved_report": lambda: tt.saved_report(model),
        "verify": lambda: tt.verify(model),
        "features": lambda: tt.features(model, "0"),
        "freeze": lambda: tt.freeze(model, "0"),
        "cam": lambda: tt.cam(model, torch.ones(1)),
        "attribute": lambda: tt.attribute(model, torch.ones(1)),
        "record": lambda: tt.record(model, [torch.ones(1)], to="nowhere"),
        "advise_offload": lambda: tt.advise_offload(model, list, budget_bytes=0),
    }
    for name, call in calls.items():
        with pytest.raises(tt.InputError, match=rf"tt\.{name} got .* expected a torch\.nn\.Module"):
            call()
    with pytest.raises(tt.InputError, match=r"the class Linear as model.*: an object of it"):
        tt.summary(nn.Linear)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every is 0; expected a whole number from 1, or a function"),
        ({"every": -1}, "every is -1"),
        ({"every": 1.5}, "every is 1.5"),
        ({"every": "2"}, "every is '2'"),
        ({"every": None}, "every is None"),
        ({"copy": "x"}, "copy is 'x'; expected one of auto, always, never"),
        ({"copy": "borrow"}, "copy is 'borrow'"),
        ({"copy": True}, "copy is True"),
        ({"grad_input": "all"}, "grad_input is 'all'; expected one of through, total"),
        ({"to": []}, "to is empty; expected a sink, a callable, or a list of them"),
        ({"to": tt.Memory}, "Memory is a class, not a sink; write Memory(...)"),
        ({"to": [tt.Memory(), tt.Memory]}, "Memory is a class"),
        ({"to": 3}, "int is no sink: expected tt.Memory(), a callable"),
        ({"to": [3]}, "int is no sink"),
        ({"to": object()}, "object is no sink"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(options: Any, message: str) -> None:
    model = linear()
    with pytest.raises(tt.InputError) as caught:
        tt.watch(model, **options)
    assert message in str(caught.value)
    assert not model._forward_hooks


def test_arguments_after_where_have_names() -> None:
    with pytest.raises(TypeError):
        tt.watch(linear(), "*", None)  # type: ignore[call-arg]


# --- a run ------------------------------------------------------------------------------------


def run() -> tt.Run:
    model = gpt()
    with tt.watch(model, "*:output") as w:
        model(torch.zeros(1, 4, dtype=torch.int64))
    return w.run


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run["hed"],
            "Nothing was recorded at 'hed:output'; did you mean 'head:output'",
        ),
        (
            lambda run: run["head:grad_output"],
            "Nothing was recorded at 'head:grad_output', which was not watched",
        ),
        (lambda run: run["head:ouptut"], "no port 'ouptut'"),
        (lambda run: run.get("head", step=3), "head:output has no record in step 3. There are: st"),
        (lambda run: run.get("head", call=1), "head:output has no record in call 1. There are: st"),
        (lambda run: run.get("head", phase="recompute"), "There are: none in phase recompute"),
        (
            lambda run: list(run.records("hed")),
            "Nothing was recorded at 'hed'; did you mean 'head'",
        ),
        (lambda run: run.select("hed"), "Nothing was recorded at 'hed'"),
        (lambda run: run.cat("hed"), "did you mean 'head:output'"),
        (lambda run: run.stats("hed"), "did you mean 'head:output'"),
        (lambda run: run.stats("head", step=4), "no record in step 4"),
        (lambda run: run.stats("head", step="last"), "step is 'last'; expected a number"),
        (lambda run: run.table("hed"), "Nothing was recorded at 'hed'"),
        (lambda run: run.mean_norm("hed"), "Nothing was recorded at 'hed'"),
        (lambda run: run.cat("head", steps=9), "steps"),
    ],
)
def test_a_run_says_what_it_has_instead(ask: Any, message: str) -> None:
    with pytest.raises(tt.SiteError) as caught:
        ask(run())
    assert message in str(caught.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no run at"):
        tt.open(tmp_path / "nothing.safetensors")


def test_every_error_of_ours_is_also_a_fitting_built_in() -> None:
    assert issubclass(tt.SiteError, LookupError)
    assert issubclass(tt.CaptureError, RuntimeError)
    assert issubclass(tt.OverwrittenError, tt.CaptureError)
    assert issubclass(tt.RunError, ValueError)
    assert issubclass(tt.InputError, ValueError)
    assert issubclass(tt.MissingExtraError, ImportError)
    ours = (tt.SiteError, tt.CaptureError, tt.RunError, tt.InputError, tt.MissingExtraError)
    assert all(issubclass(error, tt.TorchtapError) for error in ours)


@pytest.mark.parametrize(
    ("function", "given", "says"),
    [
        (tt.open, {"path": None}, "tt.open got NoneType; expected the path"),
        (tt.open, {"path": {}}, "tt.open got dict; expected the path"),
        (tt.merge, {"runs": None}, "tt.merge got NoneType; expected a list of runs"),
        (tt.Stats, {"keep": {}}, "keep is {}; expected a number of steps"),
        (tt.Stats, {"keep": None}, "keep is None; expected a number of steps"),
    ],
)
def test_what_is_no_run_and_no_number_is_refused(
    function: Callable[..., Any], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(tt.InputError, match=re.escape(says)):
        function(**given)
