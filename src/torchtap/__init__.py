"""torchtap: watch, edit, offload, compare and show everything that flows through a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchtap.core.version import __version__

if TYPE_CHECKING:
    from torchtap import edits as edits, plot as plot, stats as stats
    from torchtap.capture.watch import watch as watch
    from torchtap.capture.watch_handle import Watch as Watch
    from torchtap.core.absence import Absence as Absence
    from torchtap.core.errors import (
        CaptureError as CaptureError,
        CompareError as CompareError,
        EditError as EditError,
        InputError as InputError,
        MissingExtraError as MissingExtraError,
        NonFiniteError as NonFiniteError,
        OffloadError as OffloadError,
        OverwrittenError as OverwrittenError,
        RunError as RunError,
        SiteError as SiteError,
        TorchtapError as TorchtapError,
        TrainingWarning as TrainingWarning,
    )
    from torchtap.core.record import Key as Key, Record as Record, Sink as Sink
    from torchtap.core.site import Pattern as Pattern, Site as Site
    from torchtap.diagnosis.calls.audit import audit as audit
    from torchtap.diagnosis.calls.call import Call as Call
    from torchtap.diagnosis.calls.record_call import record_call as record_call
    from torchtap.diagnosis.calls.replay import replay as replay
    from torchtap.diagnosis.comparison.compare import compare as compare
    from torchtap.diagnosis.comparison.result import Comparison as Comparison
    from torchtap.diagnosis.origins.guard import (
        Guard as Guard,
        guard as guard,
    )
    from torchtap.diagnosis.origins.locate import locate as locate
    from torchtap.diagnosis.origins.origin import Origin as Origin
    from torchtap.edits.edit import Edit as Edit, edit as edit
    from torchtap.edits.tensor import edit_tensor as edit_tensor
    from torchtap.explain.attribute import attribute as attribute
    from torchtap.explain.cam import cam as cam
    from torchtap.explain.checks.check_result import Check as Check
    from torchtap.explain.maps.map import Map as Map
    from torchtap.failures.explain_errors import explain_errors as explain_errors
    from torchtap.graphs.graph import Graph as Graph
    from torchtap.graphs.graph_function import graph as graph
    from torchtap.hooks.marks import mark as mark
    from torchtap.runs import rules as rules
    from torchtap.runs.memory import Memory as Memory
    from torchtap.runs.merging.merge import merge as merge
    from torchtap.runs.open_run import open_run
    from torchtap.runs.rules.diagnose import diagnose as diagnose
    from torchtap.runs.rules.diagnosis import Diagnosis as Diagnosis
    from torchtap.runs.rules.finding import Finding as Finding
    from torchtap.runs.run import Run as Run
    from torchtap.runs.store.disk import Disk as Disk
    from torchtap.runs.tables.table import Table as Table
    from torchtap.saved import codecs as codecs
    from torchtap.saved.advise import advise_offload as advise_offload
    from torchtap.saved.offload import Offload as Offload, offload as offload
    from torchtap.saved.report import SavedReport as SavedReport, saved_report as saved_report
    from torchtap.saved.suspend import suspend_offload as suspend_offload
    from torchtap.show.report_file import report as report
    from torchtap.stats.catalogue.protocol import Statistic as Statistic
    from torchtap.stats.histogram import Histogram as Histogram
    from torchtap.stats.measure import measure as measure
    from torchtap.stats.sink import Stats as Stats
    from torchtap.stats.statistics import Statistics as Statistics
    from torchtap.studies.data_recording import record as record
    from torchtap.studies.summary import summary as summary
    from torchtap.studies.sweep import sweep as sweep
    from torchtap.studies.sweep_table import Sweep as Sweep
    from torchtap.studies.verify import Verification as Verification, verify as verify
    from torchtap.testing.selfcheck import Selfcheck as Selfcheck, selfcheck as selfcheck
    from torchtap.transfer.features import Features as Features, features as features
    from torchtap.transfer.freeze import Freeze as Freeze, freeze as freeze

    open = open_run


# Nothing is imported until it is used (PEP 562): the command line answers --help and reads runs
# without waiting for torch.
_HOMES = {
    "Absence": "core.absence",
    "Call": "diagnosis.calls.call",
    "CaptureError": "core.errors",
    "Check": "explain.checks.check_result",
    "CompareError": "core.errors",
    "Comparison": "diagnosis.comparison.result",
    "Diagnosis": "runs.rules.diagnosis",
    "Disk": "runs.store.disk",
    "Edit": "edits.edit",
    "EditError": "core.errors",
    "Features": "transfer.features",
    "Finding": "runs.rules.finding",
    "Freeze": "transfer.freeze",
    "Graph": "graphs.graph",
    "Guard": "diagnosis.origins.guard",
    "Histogram": "stats.histogram",
    "InputError": "core.errors",
    "Key": "core.record",
    "Map": "explain.maps.map",
    "Memory": "runs.memory",
    "MissingExtraError": "core.errors",
    "NonFiniteError": "core.errors",
    "Offload": "saved.offload",
    "Origin": "diagnosis.origins.origin",
    "OffloadError": "core.errors",
    "OverwrittenError": "core.errors",
    "Pattern": "core.site",
    "Record": "core.record",
    "Run": "runs.run",
    "Selfcheck": "testing.selfcheck",
    "RunError": "core.errors",
    "Sink": "core.record",
    "Site": "core.site",
    "SavedReport": "saved.report",
    "SiteError": "core.errors",
    "Statistic": "stats.catalogue.protocol",
    "Statistics": "stats.statistics",
    "Stats": "stats.sink",
    "Sweep": "studies.sweep_table",
    "Table": "runs.tables.table",
    "TorchtapError": "core.errors",
    "TrainingWarning": "core.errors",
    "Verification": "studies.verify",
    "Watch": "capture.watch_handle",
    "advise_offload": "saved.advise",
    "attribute": "explain.attribute",
    "audit": "diagnosis.calls.audit",
    "cam": "explain.cam",
    "codecs": "saved.codecs",
    "diagnose": "runs.rules.diagnose",
    "compare": "diagnosis.comparison.compare",
    "edit": "edits.edit",
    "edit_tensor": "edits.tensor",
    "edits": "edits",
    "explain_errors": "failures.explain_errors",
    "features": "transfer.features",
    "freeze": "transfer.freeze",
    "graph": "graphs.graph_function",
    "guard": "diagnosis.origins.guard",
    "locate": "diagnosis.origins.locate",
    "mark": "hooks.marks",
    "measure": "stats.measure",
    "merge": "runs.merging.merge",
    "offload": "saved.offload",
    "open": "runs.open_run",
    "plot": "plot",
    "record": "studies.data_recording",
    "record_call": "diagnosis.calls.record_call",
    "replay": "diagnosis.calls.replay",
    "report": "show.report_file",
    "rules": "runs.rules",
    "saved_report": "saved.report",
    "selfcheck": "testing.selfcheck",
    "stats": "stats",
    "summary": "studies.summary",
    "suspend_offload": "saved.suspend",
    "sweep": "studies.sweep",
    "verify": "studies.verify",
    "watch": "capture.watch",
}
_OTHER_NAMES = {
    "codecs": None,
    "edits": None,
    "open": "open_run",
    "plot": None,
    "rules": None,
    "stats": None,
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtap' has no attribute {name!r}")
    module = _imported(f"torchtap.{home}")
    wanted = _OTHER_NAMES.get(name, name)
    value = module if wanted is None else getattr(module, wanted)
    globals()[name] = value  # The next access finds it at once.
    return value


def _imported(name: str) -> Any:
    """Import a module, and say what it could not find in what is installed beside torchtap.

    Python reads an ``AttributeError`` of this module as "there is no such name", hides its text
    behind "cannot import name", and lets ``hasattr`` say False for a name that ``dir`` lists.
    """
    try:
        return importlib.import_module(name)
    except AttributeError as error:
        from torchtap.core.installation import versions

        raise ImportError(
            f"{name} could not be imported with {versions()}: {error}. A newer torchtap, or a "
            "version of the other package that torchtap was tried with, may have it; "
            "`torchtap selfcheck` says what works here.",
            name=name,
        ) from error


def load_ipython_extension(shell: Any) -> None:
    """Explain what cells raise, as ``tt.explain_errors(everywhere=True)`` does."""
    _imported("torchtap.failures.explained_everywhere").enter_shell(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Undo ``load_ipython_extension``."""
    _imported("torchtap.failures.explained_everywhere").leave_shell(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
