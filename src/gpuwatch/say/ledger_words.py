"""What the ledger's groups and rows are called, for tables and reports."""

from collections.abc import Mapping

from gpuwatch.facts.model.ledger import Group, LossCause, Row

GROUPS: Mapping[Group, str] = {
    Group.WORKING: "Working",
    Group.NOT_WORKING: "Allocated, starting or ending",
    Group.IDLE: "Allocated and idle",
    Group.FREE: "Free",
    Group.OUT_OF_SERVICE: "Out of service",
}
"""In the order in which people read them."""

COLUMNS: Mapping[Group, str] = {
    Group.WORKING: "working",
    Group.NOT_WORKING: "starting",
    Group.IDLE: "idle",
    Group.FREE: "free",
    Group.OUT_OF_SERVICE: "out",
}
"""The groups as headings of columns."""

ROWS: Mapping[Row, str] = {
    Row.USEFUL: "SMs active",
    Row.FEW_SMS: "few SMs active",
    Row.NO_KERNEL: "no kernel",
    Row.SLOWED: "slowed",
    Row.LOST: "lost to a failure",
    Row.PULL: "image pull",
    Row.INIT: "init containers",
    Row.LOAD: "load, until the first work",
    Row.GANG: "waits for its gang",
    Row.RESTART: "restarts, or ends",
    Row.NEVER_USED: "never used",
    Row.ABANDONED: "abandoned",
    Row.MODEL_LOADED: "a model loaded, no request",
    Row.SUSPECTED: "no kernel, not yet proven idle",
    Row.RESTING: "rests between two times of work",
    Row.HUNG: "hung",
    Row.OUTSIDE: "used outside Kubernetes",
    Row.UNMEASURED: "not measured",
    Row.USABLE: "usable, no Pod waits",
    Row.WAITED_FOR: "usable, while a Pod waits",
    Row.UNREACHABLE: "no request can get it",
    Row.ABSENT: "Node or GPU is missing",
    Row.DEGRADED: "degraded, cordoned",
    Row.MAINTENANCE: "maintenance",
}

CAUSES: Mapping[LossCause, str] = {
    LossCause.ERROR: "it ended with an error",
    LossCause.OUT_OF_MEMORY: "out of memory",
    LossCause.NODE: "its Node was lost",
    LossCause.GPU: "a degraded GPU",
    LossCause.DISRUPTED: "its Pod was evicted or deleted, and made anew",
    LossCause.UNKNOWN: "not known whether it failed",
}
"""Why work was lost."""
