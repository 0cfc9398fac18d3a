"""Observations to claims: one file a cause, whose docstring is its user page."""

from dprankdiag.classifiers.base import Classifier, DumpClassifier, WaitClassifier
from dprankdiag.classifiers.communication_fabric import CommunicationFabric
from dprankdiag.classifiers.ledger_inconsistent import LedgerInconsistent
from dprankdiag.classifiers.ledger_stale import LedgerStale
from dprankdiag.classifiers.ledgers import LedgerClassifier
from dprankdiag.classifiers.load_cache import LoadCache
from dprankdiag.classifiers.load_context import LoadContext
from dprankdiag.classifiers.load_idle import LoadIdle
from dprankdiag.classifiers.load_kv_pressure import LoadKvPressure
from dprankdiag.classifiers.load_prefill import LoadPrefill
from dprankdiag.classifiers.load_requests import LoadRequests
from dprankdiag.classifiers.load_speculation import LoadSpeculation
from dprankdiag.classifiers.load_unknown import LoadUnknown
from dprankdiag.classifiers.single_point_gpu import SinglePointGpu
from dprankdiag.classifiers.single_point_host import SinglePointHost
from dprankdiag.classifiers.single_point_link import SinglePointLink
from dprankdiag.classifiers.single_point_unknown import SinglePointUnknown
from dprankdiag.classifiers.stall_absent import StallAbsent
from dprankdiag.classifiers.structural_dispatch import StructuralDispatch
from dprankdiag.classifiers.structural_expert import StructuralExpert
from dprankdiag.classifiers.structural_graph import StructuralGraph
from dprankdiag.classifiers.structural_layout import StructuralLayout
from dprankdiag.classifiers.unclassified_late import UnclassifiedLate
from dprankdiag.classifiers.uniform_slow import UniformSlow

ALL: tuple[Classifier, ...] = (
    SinglePointGpu(),
    SinglePointHost(),
    SinglePointLink(),
    SinglePointUnknown(),
    LoadIdle(),
    LoadPrefill(),
    LoadContext(),
    LoadRequests(),
    LoadUnknown(),
    StructuralLayout(),
    StructuralExpert(),
    StructuralDispatch(),
    StructuralGraph(),
    CommunicationFabric(),
    UniformSlow(),
    UnclassifiedLate(),
)
"""Every classifier that judges traces, in the order of reasoning: a rank, its load, layout, fabric, the rest."""

BY_WAITS: tuple[WaitClassifier, ...] = (SinglePointUnknown(), SinglePointLink())
"""Every classifier that judges a receive-wait matrix."""

BY_DUMPS: tuple[DumpClassifier, ...] = (StallAbsent(),)
"""Every classifier that judges Flight Recorder dumps."""

ONLY_BY_LEDGERS: tuple[LedgerClassifier, ...] = (
    LoadCache(),
    LoadKvPressure(),
    LoadSpeculation(),
    LedgerStale(),
    LedgerInconsistent(),
)
"""What no trace shows."""

BY_LEDGERS: tuple[LedgerClassifier, ...] = (
    SinglePointHost(),
    SinglePointUnknown(),
    LoadIdle(),
    LoadPrefill(),
    LoadContext(),
    LoadRequests(),
    LoadUnknown(),
    StructuralExpert(),
    *ONLY_BY_LEDGERS,
)
"""Every classifier that judges ledgers."""

PAGES: tuple[Classifier | DumpClassifier | LedgerClassifier, ...] = (*ALL, *BY_DUMPS, *ONLY_BY_LEDGERS)
"""One classifier a cause, whatever it judges by; its docstring is the cause's page."""
