"""Absences of a watch in the form in which tests compare them."""

from __future__ import annotations

import torchtap as tt


def reasons(watch: tt.Watch) -> dict[str, str]:
    """The reason of each absent site; of several at one site, the last."""
    return {str(entry.site): entry.reason for entry in watch.absent}


def reasons_at(watch: tt.Watch, site: str) -> list[str]:
    """Every reason that is given for one site, in their order."""
    return [entry.reason for entry in watch.absent if str(entry.site) == site]
