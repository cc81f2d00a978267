"""The built site: links lead somewhere, names have their places, and it opens from the disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from browser import chromium
from pages import ROOT

import torchtap as tt

pytestmark = pytest.mark.slow
_MAX_PICTURES = 300 * 1024


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="`make docs` installs what builds the site")
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, str(ROOT / "tools" / "site" / "build.py"), str(out)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


class Read(HTMLParser):
    """Everything that a page links to, loads, shows and can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.pictures: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given["src"])
        if tag in ("script", "img") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


def read(page: Path) -> Read:
    found = Read()
    found.feed(page.read_text())
    return found


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: read(page) for page in site.rglob("*.html")}
    assert len(pages) > 150
    broken = []
    for page, found in pages.items():
        for link in {*found.links, *found.loaded}:
            name, anchor = urldefrag(link)
            name = name.partition("?")[0]
            if re.match(r"[a-z]+:", name):
                continue
            goal = (page.parent / unquote(name)).resolve() if name else page
            known = pages[goal].anchors if goal in pages else set()
            if not goal.exists() or (anchor and goal in pages and unquote(anchor) not in known):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_no_page_loads_anything_from_a_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [one for one in read(page).loaded if re.match(r"(https?:)?//", one)], page


def test_the_pictures_of_each_page_are_small(site: Path) -> None:
    for page in site.rglob("*.html"):
        files = {(page.parent / one).resolve() for one in read(page).pictures}
        assert sum(file.stat().st_size for file in files) <= _MAX_PICTURES, page


def test_every_public_name_can_be_linked_to(site: Path) -> None:
    # The inventory is a file of another project's: four lines of text, then zlib.
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    names = {f"torchtap.{name}" for name in tt.__all__ if name != "__version__"}
    for library in ("edits", "stats", "plot", "codecs"):
        own = getattr(tt, library).__all__
        names |= {f"torchtap.{library}.{name}" for name in own if name not in tt.__all__}
    assert names - listed == set()


def test_a_program_that_reads_finds_every_page_of_the_text_for_it(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    named = re.findall(r"\]\(([^)]+)\)", text)
    assert len(named) > 25
    assert all((site / name).exists() for name in named)
    assert all(line.split(": ", 1)[1] for line in text.splitlines() if ".html)" in line)


def test_the_reference_shows_signatures_types_and_source(site: Path) -> None:
    page = (site / "reference" / "api" / "watching.html").read_text()
    text = re.sub(r"<[^>]+>", "", page.partition('id="torchtap.watch"')[2])
    assert re.match(r"[^(]*watch\(\s*model: Module,", text)
    assert "_modules/torchtap/capture/watch.html#watch" in page


def test_every_command_is_in_the_reference(site: Path) -> None:
    from torchtap.cli.app import cli

    page = (site / "reference" / "commands.html").read_text()
    for name, command in cli.commands.items():
        assert command.hidden or f"torchtap {name}</" in page or f"torchtap {name}<" in page


def test_the_site_opens_and_is_searched_from_the_disk(site: Path) -> None:
    begin = site.as_uri()
    with chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{begin}/index.html")
        assert "torchtap" in page.title()
        page.goto(f"{begin}/search.html?q=offload")
        page.wait_for_selector("ul.search li a", timeout=20_000)
        assert page.locator("ul.search li a").count() > 3
    assert len(asked) > 5
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_a_menu_leads_to_the_versions_that_were_built_beside(site: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(site, both)
    shutil.copytree(site, both / "v0.0.9")
    listed = '[{"name": "latest", "path": ""}, {"name": "v0.0.9", "path": "v0.0.9/"}]'
    (both / "versions.js").write_text(f"window.torchtapVersions = {listed};")
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{both.as_uri()}/guides/editing.html")
        menu = page.get_by_label("Version")
        assert menu.locator("option").all_inner_texts() == ["latest", "v0.0.9"]
        menu.select_option(label="v0.0.9")
        page.wait_for_url("**/v0.0.9/index.html")
        page.goto(f"{both.as_uri()}/v0.0.9/reference/api/watching.html")
        assert page.get_by_label("Version").locator("option:checked").inner_text() == "v0.0.9"
        page.goto(f"{site.as_uri()}/index.html")
        page.wait_for_load_state("networkidle")
        assert page.get_by_label("Version").count() == 0  # Built alone: no menu.
