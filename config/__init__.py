"""The configuration of the agent, `kvitals.toml`: its tables as types, and the reader that checks it as a whole.

Every key is described in docs/configuration.md.
"""

from kvitals.config.checks import ConfigError, Seconds, is_pattern, normal_url
from kvitals.config.judging import ENTITY_LABELS, MuteTable, ObjectiveTable, SloTable, SomeSlo
from kvitals.config.listening import (
    MAX_CONNECTIONS,
    KvEventsSource,
    KvEventsTable,
    Otlp,
    RequestLog,
    TapTable,
    TenantsTable,
)
from kvitals.config.notify import (
    AlertmanagerTarget,
    NotifyTable,
    NotifyTarget,
    PagerDutyTarget,
    SlackTarget,
    WebhookTarget,
)
from kvitals.config.servers import OtlpOutTable, PrometheusTable, Remote
from kvitals.config.targets import ROLES, TARGET_LABELS, Kubernetes, TargetTable
from kvitals.config.toml_reader import (
    FROM_ENVIRONMENT,
    LISTS,
    MAX_FILE_BYTES,
    MAX_OBJECTIVES,
    MAX_REQUEST_LOGS,
    MAX_TARGETS,
    TABLES,
    build,
    check_codes,
    find,
    load,
    read_targets,
)
from kvitals.config.toml_tables import AgentTable, Config, HistoryTable, NodeLabels, ReviewTable

__all__ = [
    "ENTITY_LABELS",
    "FROM_ENVIRONMENT",
    "LISTS",
    "MAX_CONNECTIONS",
    "MAX_FILE_BYTES",
    "MAX_OBJECTIVES",
    "MAX_REQUEST_LOGS",
    "MAX_TARGETS",
    "ROLES",
    "TABLES",
    "TARGET_LABELS",
    "AgentTable",
    "AlertmanagerTarget",
    "Config",
    "ConfigError",
    "HistoryTable",
    "Kubernetes",
    "KvEventsSource",
    "KvEventsTable",
    "MuteTable",
    "NodeLabels",
    "NotifyTable",
    "NotifyTarget",
    "ObjectiveTable",
    "Otlp",
    "OtlpOutTable",
    "PagerDutyTarget",
    "PrometheusTable",
    "Remote",
    "RequestLog",
    "ReviewTable",
    "Seconds",
    "SlackTarget",
    "SloTable",
    "SomeSlo",
    "TapTable",
    "TargetTable",
    "TenantsTable",
    "WebhookTarget",
    "build",
    "check_codes",
    "find",
    "is_pattern",
    "load",
    "normal_url",
    "read_targets",
]
