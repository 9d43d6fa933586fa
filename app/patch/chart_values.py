"""The values of the chart of vLLM's production stack, where flags have keys of their own.

Its template (`helm/templates/deployment-vllm-multi.yaml` of vllm-project/production-stack) writes keys of
`servingEngineSpec.modelSpec[].vllmConfig` as flags and appends `extraArgs`. Prefix caching is off there unless
`enablePrefixCaching` is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from kvitals.app.patch.argument_sites import ListSite
from kvitals.app.patch.engine_command import EngineCommand
from kvitals.app.patch.lever_change import FlagEdit, PatchError, canonical_name
from kvitals.app.patch.source_text import TextEdit
from kvitals.app.patch.yaml_nodes import entries, scalar_items, text_of

VALUE_KEYS = {
    "max-model-len": "maxModelLen",
    "dtype": "dtype",
    "tensor-parallel-size": "tensorParallelSize",
    "max-num-seqs": "maxNumSeqs",
    "gpu-memory-utilization": "gpuMemoryUtilization",
    "max-loras": "maxLoras",
}
SWITCH_KEYS = {"enable-prefix-caching": "enablePrefixCaching", "enable-chunked-prefill": "enableChunkedPrefill"}


@dataclass(frozen=True)
class ChartModel:
    """One model of the chart's values."""

    file: str
    name: str
    config: yaml.MappingNode
    system: str = "vllm"
    notes: Sequence[str] = ()

    def renamed(self, name: str) -> ChartModel:
        """The same under another name."""
        return replace(self, name=name)

    def edits(self, changes: Sequence[FlagEdit]) -> list[TextEdit]:
        """The edits that make the changes; none where the values have them already."""
        edits: list[TextEdit] = []
        rest: list[FlagEdit] = []
        for change in changes:
            name = canonical_name(change.flag, self.system)
            key = VALUE_KEYS.get(name) or SWITCH_KEYS.get(name)
            if key is None or (change.action == "remove" and name in VALUE_KEYS):
                rest.append(change)
                continue
            wanted = {"switch": "true", "remove": "false"}.get(change.action, change.value)
            edits += self._set_key(key, wanted)
            rest += _without(change)
        return [*edits, *self._extra_edits(rest)]

    def has(self, changes: Sequence[FlagEdit]) -> bool:
        """Whether each changed flag is set exactly once, with its value."""
        return all(self._has(change) for change in changes)

    def state(self, flag: str) -> str | None:
        """The value of a flag in the values, empty for a switch; None where they do not set it."""
        name, extra = canonical_name(flag, self.system), self._extra()
        if extra is not None and (written := extra.state(flag)) is not None:
            return written
        known = entries(self.config)
        if (key := VALUE_KEYS.get(name)) is not None and key in known:
            return text_of(known[key])
        return "" if text_of(known.get(SWITCH_KEYS.get(name, ""))) == "true" else None

    def _has(self, change: FlagEdit) -> bool:
        name = canonical_name(change.flag, self.system)
        key, extra, known = VALUE_KEYS.get(name) or SWITCH_KEYS.get(name), self._extra(), entries(self.config)
        if key is None or (change.action == "remove" and name in VALUE_KEYS):
            absent = change.action == "remove" and (key is None or key not in known)
            return extra.has([change]) if extra is not None else absent
        wanted = {"switch": "true", "remove": "false"}.get(change.action, change.value)
        again = extra is not None and not extra.has(_without(change))
        return text_of(known.get(key)) == wanted and not again

    def _set_key(self, key: str, value: str) -> list[TextEdit]:
        node = entries(self.config).get(key)
        if isinstance(node, yaml.ScalarNode):
            if node.value == value:
                return []
            written = f'"{value}"' if node.style == '"' else f"'{value}'" if node.style == "'" else value
            return [TextEdit(node.start_mark.index, node.end_mark.index, written)]
        return [self._new_line(f"{key}: {value}")]

    def _new_line(self, text: str) -> TextEdit:
        """A line before the first key of the configuration, with its indentation."""
        if self.config.flow_style or not self.config.value:
            raise PatchError(f"vllmConfig of {self.name} is written on one line; write one key per line first")
        first = self.config.value[0][0].start_mark
        start = first.index - first.column
        indentation = " " * first.column
        return TextEdit(start, start, "".join(f"{indentation}{line}\n" for line in text.split("\n")))

    def _extra(self) -> EngineCommand | None:
        node = entries(self.config).get("extraArgs")
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            return None
        site = ListSite(self.file, node, scalar_items(node))
        return EngineCommand(self.name, self.system, [(site, 0)], site)

    def _extra_edits(self, changes: Sequence[FlagEdit]) -> list[TextEdit]:
        extra = self._extra()
        if extra is not None:
            return extra.edits(changes)
        if all(change.action == "remove" for change in changes):
            return []
        if "extraArgs" in entries(self.config):
            raise PatchError(f"extraArgs of {self.name} is empty; remove the key first")
        words = [
            word
            for change in changes
            if change.action != "remove"
            for word in ([change.flag] if change.action == "switch" else [change.flag, change.value])
        ]
        items = "".join("\n  - '" + word.replace("'", "''") + "'" for word in words)
        return [self._new_line(f"extraArgs:{items}")]


def _without(change: FlagEdit) -> list[FlagEdit]:
    """The removal of a flag and its opposite from extraArgs, which the template writes after the flag of the key."""
    opposite = f"--no-{change.flag.removeprefix('--')}"
    return [FlagEdit(change.flag, "remove"), FlagEdit(opposite, "remove")]


def chart_models(content: str, document: yaml.Node) -> Iterator[ChartModel]:
    """The models of the chart's values; none for any other document."""
    specification: Mapping[str, yaml.Node] = entries(entries(document).get("servingEngineSpec"))
    models = specification.get("modelSpec")
    for item in models.value if isinstance(models, yaml.SequenceNode) else ():
        known = entries(item)
        config = known.get("vllmConfig")
        if not isinstance(config, yaml.MappingNode):
            raise PatchError("a model of modelSpec has no vllmConfig; add one with today's flags first")
        yield ChartModel(content, text_of(known.get("name")), config)
