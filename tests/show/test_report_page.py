"""The page of a run in a real browser: what a person does with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser import Visit, chromium
from report_runs import hostile_run, image_run, nan_run, trained_run

import torchtap as tt


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "nan": tt.report(nan_run(), folder / "nan.html"),
        "maps": tt.report(image_run(), folder / "maps.html"),
        "hostile": tt.report(hostile_run(), folder / "hostile.html"),
        "pair": tt.report(trained_run(), folder / "pair.html", other=trained_run(30)),
        "long": tt.report(trained_run(500), folder / "long.html"),
    }


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Visit]:
    found = Visit(browser, pages[request.param])
    yield found
    found.close()


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("visit", [name], indirect=True)


@on("nan")
def test_the_filter_takes_patterns_and_words(visit: Visit) -> None:
    visit.page.click("#tab-table")
    every = visit.sites()
    run = nan_run()
    for text, where in (
        ("*@Conv2d:grad_output", "*@Conv2d:grad_output"),
        ("?:output,grad_output", "?:output,grad_output"),
        ("*:param_grad[bias]", "*:param_grad[bias]"),
        ("re:[03]:input", "re:[03]:input"),
        (".", "."),
        ("*:*, !1, !*@Conv2d", ["*:*", "!1", "!*@Conv2d"]),
        ("*@_BatchNorm:*", "*@_BatchNorm:*"),
        ("[!0-3]", "[!0-3]"),
    ):
        visit.page.fill("#filter", text)
        assert sorted(visit.sites()) == sorted(map(str, run.select(where))), text
    visit.page.fill("#filter", "GRAD_out")
    assert visit.sites() == [one for one in every if "grad_out" in one]
    visit.page.fill("#filter", "*:grad_outputs")
    assert visit.page.inner_text("#shown") == "There is no port 'grad_outputs'."
    visit.page.keyboard.press("Escape")
    assert visit.sites() == every


@on("long")
def test_a_heading_sorts_by_what_the_cells_show(visit: Visit) -> None:
    visit.page.click("#tab-table")
    every = visit.sites()
    run = trained_run(500)
    shown = {one: float(f"{run.stats(one).std:.4g}") for one in every}
    right = sorted(every, key=lambda one: -shown[one])
    visit.page.click("th[data-column=std] button")
    assert visit.sites() == right
    assert visit.page.get_attribute("th[data-column=std]", "aria-sort") == "descending"
    visit.page.click("th[data-column=std] button")
    assert visit.sites() == sorted(every, key=lambda one: shown[one])
    visit.page.click("th[data-column=std] button")
    assert visit.sites() == every
    visit.page.click("th[data-column=site] button")
    assert visit.sites()[0] == min(every, key=str)


@on("nan")
def test_a_click_on_a_chart_sets_the_step_everywhere(visit: Visit) -> None:
    visit.page.click("#tab-table")
    visit.page.click('tr[data-site="0:output"]')
    assert visit.page.evaluate("location.hash") == "#site=0%3Aoutput"
    box = visit.page.locator("#detail .u-over").bounding_box()
    visit.page.mouse.click(box["x"] + box["width"] * 3 / 8, box["y"] + 40)
    assert visit.page.evaluate("location.hash") == "#site=0%3Aoutput&step=3"
    assert visit.page.input_value("#step") == "3"
    run = nan_run()
    shown = visit.page.inner_text('tr[data-site="3:output"] td[data-name="absmax"]')
    assert float(shown) == pytest.approx(run.stats("3:output", step=3).absmax, rel=1e-3)
    assert visit.page.inner_text("#numbers caption") == "step 3"
    visit.page.click("#later")
    assert visit.page.inner_text("#step-text") == "4 of 8"
    visit.page.mouse.move(5, 5)  # Nothing is pointed at: the legend is of the step that is chosen.
    values = visit.page.locator("#detail .u-legend td").all_inner_texts()
    assert values[0] == "4"
    assert float(values[1]) == pytest.approx(run.stats("0:output", step=4).std, rel=1e-3)


@on("nan")
def test_an_address_opens_a_site_at_a_step_and_back_goes_back(visit: Visit) -> None:
    visit.goto(f"site={quote('3:grad_output')}&step=5")
    assert visit.page.inner_text("#detail h2") == "3:grad_output"
    assert "first in step 5" in visit.page.inner_text("#detail")
    assert visit.page.input_value("#step") == "5"
    visit.page.click('tr[data-site="1:output"]')
    assert visit.page.inner_text("#detail h2") == "1:output"
    visit.page.go_back()
    visit.wait_until("document.querySelector('#detail h2').textContent[0] === '3'")
    visit.goto("site=nowhere&step=-7")
    assert visit.page.input_value("#step") == "0"


@on("nan")
def test_the_finding_leads_to_where_it_first_went_wrong(visit: Visit) -> None:
    visit.page.click(".findings .bad a")
    assert visit.page.inner_text("#detail h2") == ".:input"
    assert visit.page.inner_text("#step-text") == "5 of 8"
    assert visit.page.inner_text('tr[data-site=".:input"] td[data-name="nonfinite"]') == "1"


@on("nan")
def test_the_page_is_used_by_keys_alone(visit: Visit) -> None:
    keys = visit.page.keyboard
    keys.press("2")
    assert visit.page.get_attribute("#tab-table", "aria-selected") == "true"
    keys.press("j")
    keys.press("j")
    assert visit.page.inner_text("#detail h2") == visit.sites()[1]
    keys.press("ArrowLeft")
    assert visit.page.inner_text("#step-text") == "7 of 8"
    keys.press("/")
    visit.wait_until("document.activeElement.id === 'filter'")
    keys.type("5:output")
    keys.press("Enter")
    assert visit.page.inner_text("#detail h2") == "5:output"
    keys.press("Escape")
    keys.press("Escape")
    assert visit.page.is_hidden("#detail")
    keys.press("?")
    assert visit.page.is_visible("#keys")
    keys.press("Escape")
    visit.page.focus("#tab-table")
    keys.press("ArrowRight")
    assert visit.page.get_attribute("#tab-flow", "aria-selected") == "true"
    assert visit.page.evaluate("document.activeElement.id") == "tab-flow"


@on("maps")
def test_maps_are_drawn_in_the_colours_that_are_chosen(visit: Visit) -> None:
    visit.page.click("#tab-maps")
    pixel = """name => {
      const canvas = document.querySelector('figure[data-maps="0:output"] canvas');
      const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const seen = new Set();
      for (let at = 0; at < all.length; at += 4) seen.add(all.slice(at, at + 4).join());
      return [...seen];
    }"""
    colors = set(visit.page.evaluate(pixel))
    assert "255,0,255,255" in colors  # What is not finite.
    visit.page.select_option("#colors", "grey")
    greys = [one.split(",") for one in visit.page.evaluate(pixel)]
    assert all(
        r == g == b for r, g, b, a in greys if (r, g, b) != ("255", "0", "255") and a == "255"
    )


@on("maps")
def test_a_box_of_the_graph_opens_its_module(visit: Visit) -> None:
    visit.page.click("#tab-graph")
    visit.page.click('#panel-graph [data-path="3"]')
    assert visit.page.inner_text("#detail h2").startswith("3:")


@on("hostile")
def test_hostile_names_stay_text(visit: Visit) -> None:
    visit.page.click("#tab-table")
    for site in visit.sites():
        visit.goto(f"site={quote(site)}")
        assert visit.page.text_content("#detail h2") == site
    assert visit.page.query_selector("img") is None


@on("pair")
def test_two_runs_are_drawn_in_one_chart(visit: Visit) -> None:
    visit.page.click("#tab-table")
    visit.page.click('tr[data-site="0:output"]')
    labels = visit.page.locator("#detail .u-legend th").all_inner_texts()
    assert [one.strip() for one in labels] == ["step", "the first run", "the second run"]
    first, second = trained_run(), trained_run(30)
    row = 'tr[data-site="0:output"] td[data-name={}]'
    own, other = (float(visit.page.inner_text(row.format(one))) for one in ("std", "other"))
    assert own == pytest.approx(first.stats("0:output").std, rel=1e-3)
    assert other == pytest.approx(second.stats("0:output").std, rel=1e-3)


@pytest.mark.parametrize("name", ["nan", "maps", "pair"])
def test_it_is_readable_without_scripts(name: str, browser: Any, pages: dict[str, Path]) -> None:
    visit = Visit(browser, pages[name], java_script_enabled=False)
    page = visit.page
    assert page.is_visible("#sites tbody tr:last-child")
    assert page.is_visible(".findings li")
    assert page.is_visible("#panel-notes")
    assert page.is_hidden("#cursor")
    if name != "maps":
        assert page.is_visible("svg.flow")
    visit.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["nan", "maps", "pair"])
def test_axe_finds_nothing_serious(
    name: str, scheme: str, browser: Any, pages: dict[str, Path]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    visit = Visit(browser, pages[name], color_scheme=scheme)
    for key in "123456":
        visit.page.keyboard.press(key)
        if key == "2":
            visit.page.keyboard.press("j")
        visit.page.wait_for_timeout(50)
        found = axe.run(visit.page).response["violations"]
        bad = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not bad, json.dumps(
            [(one["id"], [n["html"][:150] for n in one["nodes"][:3]]) for one in bad], indent=1
        )
    visit.page.click("#theme")
    assert visit.page.evaluate("document.documentElement.dataset.theme") != scheme
    visit.close()
