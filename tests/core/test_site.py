"""Sites and patterns: what is printed is what is read, and what fits."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, strategies as st

import torchtap as tt
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.ports import FLOW_PORTS, PORTS
from torchtap.core.site import leaf_matches

names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=6)
paths = st.lists(names, max_size=4).map(".".join)
odd_paths = st.text(min_size=1, max_size=12).filter(
    # A path that is itself a site's text cannot be distinguished from one.
    lambda text: ":" not in text and text != "."
)
leaves = st.lists(names, max_size=3).map(".".join)
ports = st.sampled_from(PORTS)
globs = st.lists(
    st.one_of(names, st.sampled_from(["*", "?", "a*", "[ab]x", "."])), min_size=1, max_size=4
).map(".".join)
patterns = st.builds(
    tt.Pattern,
    path=st.one_of(globs, st.just("."), names.map("re:{}(a|b)\\d+".format)),
    ports=st.one_of(st.none(), st.lists(ports, min_size=1, unique=True).map(tuple)),
    type=st.one_of(st.just(""), st.from_regex(r"[A-Za-z_]\w{0,6}", fullmatch=True)),
    negate=st.booleans(),
)


# --- sites ------------------------------------------------------------------------------------


@given(st.builds(tt.Site, st.one_of(paths, odd_paths), ports, leaves))
def test_a_site_is_read_as_it_was_printed(site: tt.Site) -> None:
    assert tt.Site.parse(str(site)) == site


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("fc", tt.Site("fc", "output")),
        (".", tt.Site("", "output")),
        (".:input[0]", tt.Site("", "input", "0")),
        ("blocks.3.attn:output[1]", tt.Site("blocks.3.attn", "output", "1")),
        ("fc:param_grad[bias]", tt.Site("fc", "param_grad", "bias")),
        ("enc:output[last_hidden_state]", tt.Site("enc", "output", "last_hidden_state")),
        ("a:b:output", tt.Site("a:b", "output")),
    ],
)
def test_texts_of_sites(text: str, site: tt.Site) -> None:
    assert tt.Site.parse(text) == site


def test_a_site_with_an_unknown_port_names_the_near_one() -> None:
    with pytest.raises(tt.SiteError, match=r"no port 'outputs' .*did you mean 'output'"):
        tt.Site.parse("fc:outputs")


@pytest.mark.parametrize(
    ("port", "is_gradient"),
    [("grad_input", True), ("grad_output", True), ("param_grad", True), ("output", False)],
)
def test_a_site_knows_whether_it_is_a_gradient(port: str, is_gradient: bool) -> None:
    assert tt.Site("", port).is_gradient is is_gradient


# --- patterns ---------------------------------------------------------------------------------


@given(patterns)
def test_a_pattern_is_read_as_it_was_printed(pattern: tt.Pattern) -> None:
    again = tt.Pattern.parse(str(pattern))
    assert str(again) == str(pattern)
    assert (again.path, again.type, again.negate) == (pattern.path, pattern.type, pattern.negate)
    assert set(again.effective_ports) == set(pattern.effective_ports)


@given(patterns, leaves.filter(bool))
def test_a_leaf_is_read_as_it_was_printed(pattern: tt.Pattern, leaf: str) -> None:
    wanted = tt.Pattern(pattern.path, ("output",), pattern.type, leaf, pattern.negate)
    assert tt.Pattern.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("*", tt.Pattern("*")),
        (".", tt.Pattern(".")),
        ("fc", tt.Pattern("fc")),
        ("!fc", tt.Pattern("fc", negate=True)),
        ("@Conv2d", tt.Pattern("*", type="Conv2d")),
        ("layer*@Conv2d", tt.Pattern("layer*", type="Conv2d")),
        ("fc:input", tt.Pattern("fc", ("input",))),
        ("fc:output,grad_output", tt.Pattern("fc", ("output", "grad_output"))),
        ("fc:output, grad_output", tt.Pattern("fc", ("output", "grad_output"))),
        ("fc:*", tt.Pattern("fc", FLOW_PORTS)),
        ("fc:*,param", tt.Pattern("fc", (*FLOW_PORTS, "param"))),
        ("fc:param_grad[bias]", tt.Pattern("fc", ("param_grad",), "", "bias")),
        ("!@ReLU:input[0]", tt.Pattern("*", ("input",), "ReLU", "0", negate=True)),
        ("re:layer[0-9]+", tt.Pattern("re:layer[0-9]+")),
        ("re:(?:a|b):input", tt.Pattern("re:(?:a|b)", ("input",))),
        ("re:(?:a|b)", tt.Pattern("re:(?:a|b)")),
        ("layer[12].conv:output", tt.Pattern("layer[12].conv", ("output",))),
    ],
)
def test_every_form_of_a_pattern(text: str, pattern: tt.Pattern) -> None:
    assert tt.Pattern.parse(text) == pattern
    assert tt.Pattern.parse(str(pattern)) == pattern


def test_a_pattern_without_ports_means_the_output() -> None:
    assert tt.Pattern.parse("fc").effective_ports == ("output",)


def test_taking_away_without_ports_means_all_ports() -> None:
    assert tt.Pattern.parse("!fc").effective_ports == PORTS


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*", "", True),
        ("*", "a.b", True),
        (".", "", True),
        (".", "a", False),
        ("a", "a", True),
        ("a", "a.b", False),
        ("a*", "a.b.c", True),
        ("*.attn", "blocks.3.attn", True),
        ("blocks.?.attn", "blocks.3.attn", True),
        ("blocks.?.attn", "blocks.13.attn", False),
        ("blocks.[12]", "blocks.3", False),
        ("A", "a", False),
        ("re:blocks\\.\\d+", "blocks.13", True),
        ("re:blocks", "blocks.13", False),
        ("odd[name]", "odd[name]", True),
    ],
)
def test_which_paths_fit(pattern: str, path: str, fits: bool) -> None:
    assert tt.Pattern.parse(pattern).matches_module(path, ()) is fits


@pytest.mark.parametrize(
    ("pattern", "types", "fits"),
    [
        ("@Conv2d", ("Conv2d", "_ConvNd"), True),
        ("@_ConvNd", ("Conv2d", "_ConvNd"), True),
        ("@Linear", ("Conv2d", "_ConvNd"), False),
        ("x@Conv2d", ("Conv2d",), False),
        ("@Conv2d", None, False),
    ],
)
def test_which_classes_fit(pattern: str, types: tuple[str, ...] | None, fits: bool) -> None:
    assert tt.Pattern.parse(pattern).matches_module("a", types) is fits


@pytest.mark.parametrize(
    ("pattern", "leaf", "fits"),
    [
        ("", "anything", True),
        ("hidden", "hidden", True),
        ("hidden", "hidden.0", True),
        ("hidden", "hidden_states", False),
        ("hidden.*", "hidden.0", True),
        ("0", "", True),
        ("1", "", False),
        ("0", "0.1", True),
        ("*", "", True),
    ],
)
def test_which_leaves_fit(pattern: str, leaf: str, fits: bool) -> None:
    assert leaf_matches(pattern, leaf) is fits


def test_a_pattern_fits_a_whole_site() -> None:
    pattern = tt.Pattern.parse("fc:output[0]")
    assert pattern.matches(tt.Site("fc", "output", "0"))
    assert not pattern.matches(tt.Site("fc", "output", "1"))
    assert not pattern.matches(tt.Site("fc", "input", "0"))
    assert not pattern.matches(tt.Site("fc2", "output", "0"))


@given(st.one_of(paths, odd_paths), ports)
def test_the_text_of_a_site_selects_it(path: str, port: str) -> None:
    site = tt.Site(path, port)
    glob = any(character in path for character in "*?[!@") or path.startswith("re:")
    if not glob:
        assert tt.Pattern.parse(str(site)).matches(site, ())


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no path. Write '*'"),
        ("!", "has no path"),
        (":output", r"has no path. Write '\*:output' for every module or '\.:output' for the root"),
        ("fc:", "ends in a colon and names no port; expected .* Write 'fc:output'"),
        ("fc:output[", "has brackets without a leaf; .* Write 'fc:output'"),
        ("fc:output[]", "has brackets without a leaf; .* Write 'fc:output'"),
        ("fc:outptu[1", r"does not end in a leaf in brackets; .* Write 'fc:output\[1\]'"),
        ("fc:output[1]x", r"does not end in a leaf in brackets; .* Write 'fc:output\[1\]'"),
        ("fc:[1]", r"has a leaf without a port; .* Write 'fc:output\[1\]'"),
        ("fc:input,", "has 'input,' where ports are expected; .* Write 'fc:input'"),
        ("fc:outptu", "no port 'outptu' .*did you mean 'output'"),
        ("fc:output,grads", "no port 'grads'.*Ports are input, output"),
        ("fc:gradoutput", "did you mean 'grad_output'"),
        ("re:(", "'re:\\(' is not a regular expression: missing"),
    ],
)
def test_a_pattern_that_cannot_be_read_says_why(text: str, message: str) -> None:
    with pytest.raises(tt.SiteError, match=message):
        tt.Pattern.parse(text)


def test_did_you_mean_prefers_what_is_near() -> None:
    known = ["blocks.3.attn", "blocks.3.mlp", "head"]
    assert did_you_mean("blocks.3.atn", known).startswith("; did you mean 'blocks.3.attn'")


def test_did_you_mean_finds_a_last_name_elsewhere() -> None:
    assert did_you_mean("attn", ["transformer.blocks.13.attn"]).startswith("; did you mean 'trans")


def test_did_you_mean_is_silent_where_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["head"]) == "."


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=4))
def test_did_you_mean_names_only_what_is_known(word: str, known: list[str]) -> None:
    text = did_you_mean(word, known)
    assert text == "." or any(repr(name) in text for name in known)
    assert re.fullmatch(r"\.|; did you mean .*\?", text, re.DOTALL)
