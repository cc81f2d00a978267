"""``tt.report``: a run as one page that opens anywhere, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.core.errors import InputError
from torchtap.core.printed import Printed
from torchtap.runs.run import Run

if TYPE_CHECKING:
    from torchtap.graphs.graph import Graph
    from torchtap.show.page.build import Explanation

_PARTS = (1.0, 0.6, 0.35, 0.2, 0.1)


def report(
    run: Run,
    path: str | Path,
    *,
    other: Run | None = None,
    max_mb: float | None = None,
    title: str = "",
    graph: Graph | None = None,
    maps: Sequence[Explanation] = (),
    saved: Printed | None = None,
) -> Path:
    """Write a run as one HTML page, which needs neither a network nor torchtap.

    The page lists every site with its numbers, and draws series over the steps, histograms,
    feature maps of the values that were kept, magnitudes over depth, and the graph of the calls as
    far as the run holds them. A click on a chart sets the step in all of them. Its tables and
    pictures of one look are readable without scripts. The data stand in it as JSON, in the element
    ``script#data``, which says in ``data-encoding`` whether they are ``json`` or ``gzip+base64``.

    Charts of more steps than points draw each point from the smallest to the largest number of its
    steps. Numbers are rounded to four digits; NaN is ``null``, infinity ``"inf"``. Elements that
    are not finite are counted, and marked in the charts.

    Args:
        run: of a watch, or opened from a file or a folder, also of one that still grows.
        path: of the page; a file that is there is replaced, and a directory that is not is made.
        other: a second run, shown beside the first: its sites in the same table, also those that
            only one has, and its series in the same charts.
        max_mb: most megabytes (10^6 bytes) of the page; the resolution of series and maps is
            lowered to reach it, and the page says so.
        title: of the page; by default the class of the model.
        graph: of ``tt.graph``, in place of the one that the values of the run tell.
        maps: explanations, as of ``tt.cam``, each alone or with its picture, ``(map, picture)``.
        saved: of ``tt.saved_report``, to stand in the page.

    Returns:
        the path.

    Raises:
        InputError: ``run`` or ``other`` is no run, ``path`` is a directory, or the page cannot be
            as small as ``max_mb``.
        OSError: it cannot be written there.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        >>> with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        ...     for _ in range(3):
        ...         model(torch.randn(8, 4)).sum().backward()
        ...         w.step()
        >>> tt.report(w.run, tempfile.mkdtemp() + "/report.html").name
        'report.html'
    """
    from torchtap.show.page.build import PageParts, page_html

    target = Path(path)
    _refuse(run, other, target, max_mb)
    parts = PageParts(title, graph, maps, "" if saved is None else str(saved))
    for part in _PARTS:
        text = page_html(run, other=other, part=part, parts=parts)
        content = text.encode("utf-8", "backslashreplace")
        if max_mb is None or len(content) <= max_mb * 1e6:
            break
    else:
        raise InputError(
            f"The page has {len(content) / 1e6:.2f} MB at its lowest resolution, and max_mb is "
            f"{max_mb}. Give more, or a part of the run."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.part")
    beside.write_bytes(content)
    beside.replace(target)
    return target


def _refuse(run: Run, other: Run | None, target: Path, max_mb: float | None) -> None:
    for name, one in (("run", run), ("other", other)):
        if not isinstance(one, Run) and not (name == "other" and one is None):
            raise InputError(
                f"{name} is a {type(one).__name__}; expected a run: w.run of a watch, or "
                f"tt.open(path)."
            )
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the file: {target / 'report.html'}.")
    if max_mb is not None and not max_mb > 0:
        raise InputError(f"max_mb is {max_mb!r}; expected a number above 0.")
