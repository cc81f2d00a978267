"""A map of what decided an output: raw values, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page, wants_color
from torchtap.explain.maps.map_file import ENDINGS, read_map, write_array, write_map
from torchtap.explain.maps.map_page import map_page, row_title, title_of
from torchtap.explain.maps.map_values import MapValues, resized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchtap.explain.checks.check_result import Check, Of
    from torchtap.plot.explained import Pane

_MOST_ROWS = 8
_ASPECT = 0.02
"""How far the sides of a picture may be off those of the input, as a share: rounding, no more."""


class Map(MapValues, Printed):
    """The result of ``tt.cam`` and ``tt.attribute``: a map for each row, and where it comes from.

    Printing it shows the range of each row, and a notebook shows the picture too. ``map[0]`` is the
    map of one row.

    Attributes:
        values: raw and signed, at native resolution, on the CPU, detached: ``float[B, H, W]`` of
            ``cam`` (``[B, L]`` and ``[B, D, H, W]`` for 1-d and 3-d maps; ``[B, K, ...]`` where K
            layers are stacked), the shape of the input for ``attribute``.
        method: its name.
        layer: path of the layer, ``""`` for the input; several are joined by ``", "``.
        target: class of each row, ``None`` where the target is no class.
        target_text: how the target reads.
        scores: the explained number of each row, ``float[B]``.
        notes: what the reader should know.
        gap: completeness gap of each row, ``float[B]``, of methods that have one: the sum of the
            map less the difference of the scores at the input and the baseline.
        size: height and width (``(L,)``, ``(D, H, W)``) of what the map lies over, to resize it
            to. Its length says how many of the last dimensions of ``values`` are space: what
            stands between them and the rows are K stacked layers, or channels. ``(T,)`` for
            tokens, where ``values`` are ``[B, T]``; ``()`` where nothing is space, as for
            features ``[B, F]`` and embedded tokens ``[B, T, D]``, or where space is not last, as
            in pictures ``[B, H, W, C]``.
        again: makes the same map anew, for ``check``: an :class:`~torchtap.explain.recipe.Recipe`,
            which says what ``tt.cam`` and ``tt.attribute`` must give. ``None`` of a map that was
            read from a file.
        names: name of each row's class, where they were given.
        tokens: the texts of each row's tokens, where they were given.

    Example:
        >>> import torch
        >>> values = torch.tensor([[[0.0, 2.0], [-1.0, 0.5]]])
        >>> score = torch.tensor([7.5])
        >>> found = Map(values, "gradcam", "conv", (3,), "class 3", score, size=(4, 4))
        >>> print(found)
        gradcam at conv, class 3
        float32[1, 2, 2], over 4x4
        <BLANKLINE>
        row  target  score  sum  min  max  zeros  NaN/Inf
          0  3         7.5  1.5   -1    2  25.0%        0
        >>> found.resize((4, 4)).values.shape
        torch.Size([1, 4, 4])
    """

    # ------------------------------------------------------------------ pictures

    def overlay(
        self,
        image: Any,
        *,
        alpha: float = 0.5,
        clip: float = 0.0,
        limits: tuple[float, float] | None = None,
        layer: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Any:
        """Lay the map over the picture that it explains: a PIL image of the picture's size.

        Values are resized, bilinear. Channels are added up (where all are equal, as under a window
        of occlusion over all of them, they count once). A map without meaning for the eye (see
        :attr:`faults`) is not laid over the picture: the reason stands on it in words. NaN and
        infinite values are magenta.

        Args:
            image: a PIL image, an array ``[H, W, 3]`` or a tensor ``[3, H, W]``, of bytes or of
                floats from 0 to 1, cut out as the model's input was.
            alpha: share of the map's colours.
            clip: this share of the largest magnitudes gets the last colour, so that a few extremes
                do not pale the rest.
            limits: what the first and the last colour stand for, to compare maps; by default from
                0 to the largest value, or symmetric where any value is below 0.
            layer: which of several stacked layers.
            mean: what was subtracted from the floats of a normalised picture.
            std: what they were divided by.

        Raises:
            InputError: the map has several rows, or is not 2-d; the picture is none, or is of
                other proportions than the input.
            MissingExtraError: Pillow or matplotlib is not installed.

        Example:
            >>> values = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
            >>> score = torch.tensor([7.5])
            >>> found = Map(values, "gradcam", "conv", (3,), "class 3", score, size=(8, 8))
            >>> found.overlay(torch.zeros(3, 8, 8)).size
            (8, 8)
        """
        from torchtap.plot.extras import pillow
        from torchtap.plot.heat import blended, fault_of, limits_of
        from torchtap.plot.picture import pixels_of

        if len(self) != 1:
            raise InputError(
                f"The map has {len(self)} rows; expected one, as in found[0].overlay(image)."
            )
        if not 0 <= alpha <= 1:
            raise InputError(f"alpha is {alpha!r}; expected a share from 0 to 1.")
        _refuse_clip(clip)
        arrays = self.arrays(0)
        if layer is None and len(arrays) > 1:
            raise InputError(
                f"{len(arrays)} layers are stacked ({self.layer}); say which, as in layer=0."
            )
        if not 0 <= (layer or 0) < len(arrays):
            raise InputError(f"layer is {layer}, and there are {len(arrays)}.")
        values = arrays[layer or 0]
        if values.ndim != 2:
            raise InputError(
                f"The map is {self.typed} with {values.ndim} dimensions of space; expected 2 to "
                f"lay it over a picture. to_figure() draws it."
            )
        pixels = pixels_of(image, mean=mean, std=std)
        self._refuse_other_proportions(pixels.shape[:2])
        fault = fault_of(values)
        if fault:
            return _worded(pillow().fromarray(pixels), fault)
        laid = _laid(values, pixels.shape[:2])
        mixed = blended(pixels, laid, limits or limits_of([values], clip), alpha)
        return pillow().fromarray(mixed)

    def to_figure(
        self,
        image: Any = None,
        *,
        scale: str = "shared",
        clip: float = 0.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Figure:
        """Draw the maps with matplotlib: up to 8 rows, each with its range, one bar of colours.

        Maps are drawn at native resolution, and over the picture resized. Channels are added up.
        1-d maps are bars; of 3-d maps stands the plane with the largest magnitude. Maps with values
        below 0 are red and blue, white at zero, symmetric; others viridis from 0.

        Args:
            image: the picture, or one for each row, as :meth:`overlay` takes them.
            scale: one scale of colours for all maps (``shared``), or one for each of them
                (``each``), drawn as a share of its largest magnitude.
            clip: as of :meth:`overlay`; the bar of colours then ends in arrows.
            mean: as of :meth:`overlay`.
            std: as of :meth:`overlay`.

        Raises:
            InputError: a picture does not fit, or there is no row.
            MissingExtraError: matplotlib is not installed.
        """
        from torchtap.plot.explained import explained_figure
        from torchtap.plot.heat import limits_of

        if scale not in ("shared", "each"):
            raise InputError(f"scale is {scale!r}; expected 'shared' or 'each'.")
        _refuse_clip(clip)
        if not len(self):
            raise InputError("The map has no row: there is nothing to draw.")
        shown = min(len(self), _MOST_ROWS)
        pictures = self._pictures(image, shown, mean, std)
        rows = [self.panes(row, pictures[row], is_share=scale == "each") for row in range(shown)]
        notes = [f"{shown} of {len(self)} rows"] if shown < len(self) else []
        if scale == "each":
            notes.append("each map is scaled by its largest magnitude: colours do not compare")
        return explained_figure(
            rows,
            title=title_of(self),
            limits=limits_of([pane.values for row in rows for pane in row], clip),
            notes=[*notes, *self.notes],
            is_clipped=clip > 0,
        )

    def panes(self, row: int, picture: Any, *, is_share: bool = False) -> list[Pane]:
        """Return what a figure draws of one row: a pane for each layer.

        Args:
            row: which.
            picture: pixels that it lies over, ``uint8[H, W, 3]``, or ``None``.
            is_share: draw each as a share of its largest magnitude.
        """
        from torchtap.plot.explained import Pane, heading_of
        from torchtap.plot.heat import fault_of, limits_of

        layers = self.layer.split(", ") if self.num_stacked else [""]
        arrays = self.arrays(row)
        labels = self.tokens[row] if self.tokens else ()
        panes = []
        for layer, values in zip(layers, arrays, strict=True):
            what = f"{row_title(self, row)}{f', {layer}' if layer else ''}"
            heading = heading_of(what, values)
            drawn = values / limits_of([values])[1] if is_share else values
            laid = None
            if picture is not None and values.ndim == 2 and not fault_of(values):
                laid = _laid(drawn, picture.shape[:2])
            beside = picture if values.ndim == 2 else None
            panes.append(Pane(drawn, heading, laid, beside, labels))
        return panes

    def save(self, path: str | Path, image: Any = None) -> Path:
        """Write the map: what is written depends on the ending.

        ``.png`` is the figure, ``.npy`` the raw values, and ``.safetensors`` all that
        :meth:`open` needs to make it again, without the model.

        Args:
            path: where to.
            image: the picture, for ``.png``.

        Returns:
            the path.

        Raises:
            InputError: the ending is another, or there is a folder of this name.
            MissingExtraError: ``.png``, and matplotlib is not installed.
        """
        file = Path(path)
        ending = file.suffix.lower()
        if ending not in ENDINGS:
            raise InputError(f"{file} ends in {ending!r}; expected one of {', '.join(ENDINGS)}.")
        if file.is_dir():
            raise InputError(f"{file} is a folder; expected a file to write.")
        if ending == ".png":
            self.to_figure(image).savefig(file)
        elif ending == ".npy":
            write_array(self, file)
        else:
            write_map(self, file)
        return file

    @staticmethod
    def open(path: str | Path) -> Map:
        """Open a map that :meth:`save` wrote as ``.safetensors``; it cannot be checked.

        Args:
            path: of the file.

        Raises:
            InputError: there is none, or it is something else.
        """
        return Map(**read_map(path))

    # ------------------------------------------------------------------ trust

    def check(
        self,
        *,
        parts: Sequence[str] = ("repeat", "deletion", "insertion", "random_weights", "noise"),
        steps: int = 32,
        of: Of = "probability",
        num_controls: int = 3,
        num_random: int = 2,
        num_noise: int = 5,
        noise: float = 0.02,
        baseline: float | Tensor | None = None,
        batch_size: int = 16,
        max_evals: int | None = None,
        seed: int = 0,
    ) -> Check:
        """Test how far to trust the map.

        Five things are measured: the completeness gap, where the method promises that the map adds
        up; whether the map comes out the same again; the areas below the deletion and insertion
        curves, beside those of random maps; the rank correlation with maps of a copy of the model
        with random weights; and the largest change of the map under noise. Printing the result
        says what each number means.

        A part that is not possible, costs more than ``max_evals`` leaves, or comes after Ctrl-C,
        is missing with its reason. The model, its buffers, ``.grad`` and the random state are not
        touched; random weights are those of a deep copy.

        Args:
            parts: what is measured, apart from the completeness gap, which is known.
            steps: points of a curve after the first.
            of: what the curves are of: the softmax ``probability`` of the class, where the target
                is one, or the ``score``.
            num_controls: random maps for each curve: the same values at random places.
            num_random: copies of the model with random weights, normal with the mean and the
                deviation of each parameter.
            num_noise: noisy inputs.
            noise: largest change of an input's element, as a share of the row's range.
            baseline: what places are replaced by, a number or a tensor; by default the mean of
                each channel over the places of its row (0 for features ``[B, F]``), and for the
                start of insertion in pictures the blurred input.
            batch_size: most rows in one run of the model for the curves; where the model mixes
                rows, which is tried first, each run has its own forward.
            max_evals: most runs of the model, each on all rows.
            seed: of the random numbers, which are not the global ones.

        Raises:
            InputError: an argument does not fit, or the map does not know its model: it was read
                from a file, or is one row of several.
        """
        from torchtap.explain.check import Settings, check

        if self.again is None:
            raise InputError(
                "This map does not know its model: it was read from a file, detached, or is one "
                "row of several. Check the map that tt.cam or tt.attribute returned."
            )
        how = Settings(
            parts=(parts,) if isinstance(parts, str) else tuple(parts),
            steps=steps,
            of=of,
            num_controls=num_controls,
            num_random=num_random,
            num_noise=num_noise,
            noise=noise,
            baseline=baseline,
            batch_size=batch_size,
            max_evals=max_evals,
            seed=seed,
        )
        return check(self, self.again, how)

    # ------------------------------------------------------------------ text

    def to_text(self, *, color: bool | None = None) -> str:
        """Return the text that printing shows.

        Args:
            color: paint it; by default on a terminal, unless ``NO_COLOR`` is set.
        """
        return self._page().text(color=wants_color() if color is None else color)

    def __str__(self) -> str:
        return self.to_text()

    def _page(self) -> Page:
        return map_page(self)

    def _repr_html_(self) -> str:
        from torchtap.plot.extras import drawn_tag

        said = super()._repr_html_()
        if self.tokens or not len(self):
            return said
        try:
            return said + drawn_tag(self.to_figure(), "the map")
        except MissingExtraError:
            return said

    # ------------------------------------------------------------------ inside

    def _pictures(self, image: Any, rows: int, mean: Any, std: Any) -> list[Any]:
        from torchtap.plot.picture import pixels_of

        if image is None:
            return [None] * rows
        is_many = isinstance(image, list | tuple) or (
            hasattr(image, "ndim") and image.ndim == 4 and len(image) > 1
        )
        given = list(image) if is_many else [image]
        if len(given) != len(self):
            raise InputError(f"There are {len(given)} pictures for a map of {len(self)} rows.")
        pixels = [pixels_of(one, mean=mean, std=std) for one in given[:rows]]
        for pixel in pixels:
            self._refuse_other_proportions(pixel.shape[:2])
        return pixels

    def _refuse_other_proportions(self, sides: tuple[int, ...]) -> None:
        if len(self.size) != 2:
            return
        (height, width), (own_height, own_width) = sides, self.size
        if abs(width * own_height / (height * own_width) - 1) > _ASPECT:
            raise InputError(
                f"The picture is {height}x{width}, and the model was given {own_height}x"
                f"{own_width}: the map would be stretched to where it does not belong. Cut the "
                f"picture out as the model's input was."
            )


def _refuse_clip(clip: float) -> None:
    if not 0 <= clip < 1:
        raise InputError(f"clip is {clip!r}; expected a share from 0 to below 1.")


def _laid(values: Any, size: tuple[int, int]) -> Any:
    """Return a 2-d map resized to a picture."""
    return resized(torch.from_numpy(values)[None, None], size)[0, 0].numpy()


def _worded(picture: Any, fault: str) -> Any:
    """Return a picture with the reason for which nothing lies over it."""
    import textwrap

    from PIL import ImageDraw

    drawn = picture.copy()
    pen = ImageDraw.Draw(drawn)
    text = "\n".join(textwrap.wrap(f"map not drawn: {fault}", max(10, picture.width // 7)))
    box = pen.multiline_textbbox((4, 4), text)
    pen.rectangle((box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2), fill="white")
    pen.multiline_text((4, 4), text, fill="black")
    return drawn
