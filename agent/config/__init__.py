"""The configuration of the agent, `kvitals.toml`: its tables as types, and the reader that checks it as a whole.

Every key is described in docs/configuration.md.
"""

from agent.config.reader import (
    FROM_ENVIRONMENT,
    MAX_FILE_BYTES,
    build,
    check_codes,
    find,
    load,
    read_targets,
)
from agent.config.types import (
    ENTITY_LABELS,
    MAX_OBJECTIVES,
    ROLES,
    TARGET_LABELS,
    Agent,
    Config,
    ConfigError,
    Kubernetes,
    Mute,
    NodeLabels,
    Objective,
    Seconds,
    Slo,
    SomeSlo,
    Target,
    TenantsTable,
    normal_url,
)

__all__ = [
    "ENTITY_LABELS",
    "FROM_ENVIRONMENT",
    "MAX_FILE_BYTES",
    "MAX_OBJECTIVES",
    "ROLES",
    "TARGET_LABELS",
    "Agent",
    "Config",
    "ConfigError",
    "Kubernetes",
    "Mute",
    "NodeLabels",
    "Objective",
    "Seconds",
    "Slo",
    "SomeSlo",
    "Target",
    "TenantsTable",
    "build",
    "check_codes",
    "find",
    "load",
    "normal_url",
    "read_targets",
]
