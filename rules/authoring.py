"""What can be wrong with rules, levers and signals that load: texts, parameters, explanations, what is never reached.

The loader refuses what can not work. This finds what works and yet is not right: a text that says nothing, a number
without a reason, a lever that nobody is ever offered, a cause that explains itself. `kvitals rules lint` prints it, and
a test holds the knowledge that ships to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kvitals.rules.compiled_signal import NOMINAL, WindowDurations, compile_signal
from kvitals.rules.condition import comparisons
from kvitals.rules.finding import Outcome
from kvitals.rules.loader import (
    PLACEHOLDER,
    ROOT,
    SIGNAL_PREFIX,
    Knowledge,
    KnowledgeProblem,
    YamlFile,
    family_of,
    parameters,
    read_yaml,
    shipped_problems,
)
from kvitals.rules.model import AROUND, SCOPES, TO, Lever, Quantity, Rule, Signal, SystemSetting
from kvitals.rules.versions import in_range
from kvitals.series.promql import Expr, Selector, Subquery, expand, names, parse

HEADINGS = ("sees", "why", "wrong_when", "do", "do_not")
MIN_PAGE, MAX_PAGE = 40, 1100
"""Characters under one heading."""
MAX_TITLE = 75
MAX_NAME_WORDS = 5
EMPTY_WORDS = frozenset({"bad", "issue", "problem", "check", "rule", "detected", "alert"})
MIN_REASON_WORDS = 2
EXAMPLE = "an example"
"""How the texts of the template begin."""
TEMPLATE = ROOT / "template"
"""A rule and its cases to start from."""
MIN_POINTS = 10
"""Of a subquery: with fewer, a share or a percentile is that of when the points happened to be."""
SHORTEST = WindowDurations("12s", "12s")
"""The windows of a triage that knows nothing of before."""
ENTITY_FAMILY = "kvitals_target_up"
"""What makes an engine an entity in the first place."""

Found = Iterator[tuple[int, str]]
"""What is wrong, as (line, message)."""


def lint(knowledge: Knowledge, directory: Path) -> list[KnowledgeProblem]:
    """Everything wrong with the rules, levers and signals of one directory, what could not be loaded included."""
    found = [p for p in knowledge.problems if p.file == directory or p.file.is_relative_to(directory)]
    if directory.resolve() == ROOT.resolve():
        found += shipped_problems(directory)
    named = {path: name for name, path in knowledge.files.items() if path.is_relative_to(directory)}
    for path in sorted((directory / "codes").glob("*.yaml")):
        if (rule := knowledge.rules.get(named.get(path, ""))) is not None:
            found += _problems(path, partial(check_rule, rule, knowledge))
    for path in sorted((directory / "levers").glob("*.yaml")):
        if (lever := knowledge.levers.get(named.get(path, ""))) is not None:
            found += _problems(path, partial(check_lever, lever, knowledge))
    for path in sorted((directory / "signals").glob("*.yaml")):
        found += _problems(path, partial(check_signals, knowledge))
    return sorted(dict.fromkeys(found), key=lambda p: (str(p.file), p.line))


def wanted_outcomes(rule: Rule, knowledge: Knowledge) -> set[Outcome]:
    """The outcomes of which a rule must have a case each."""
    wanted: set[Outcome] = {"fired", "clear"}
    if not _always_decided(rule, knowledge):
        wanted.add("unknown")
    if rule.applies.traffic:
        wanted.add("n/a")
    return wanted


def check_rule(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Found:
    """What is not right with a rule that loads."""
    yield from _check_texts(rule, file)
    yield from _check_evidence(rule, knowledge, file)
    yield from _check_examples(rule, file)
    yield from _check_page(rule, file)
    yield from _check_parameters(rule, file)
    yield from _check_condition(rule, knowledge, file)
    yield from _check_kind(rule, file)
    yield from _check_explanations(rule, knowledge, file)
    yield from _check_levers(rule, knowledge, file)


def check_lever(lever: Lever, knowledge: Knowledge, file: YamlFile) -> Found:
    """What is not right with a lever that loads."""
    offered = [rule.code for rule in knowledge.rules.values() for use in rule.levers if use.lever == lever.name]
    if not offered and not lever.no_rule:
        yield 1, f"no rule offers {lever.name}: name it in a rule's `levers`, or state the reason in `no_rule`"
    if offered and lever.no_rule:
        yield file.line("no_rule"), f"`no_rule` states why no rule offers it, but {offered[0]} does"
    for key in ("does", "when", "does_not_fix", "risk"):
        if not getattr(lever, key).strip().endswith("."):
            yield file.line(key), f"{key}: must be sentences, and the last must end with a full stop"
    if not lever.estimate.how.strip().endswith("."):
        yield file.line("estimate", "how"), "estimate.how: must be sentences, and the last must end with a full stop"
    if not (lever.title[0].isupper() and lever.title[-1].isalnum()):
        yield file.line("title"), "title: must begin with a capital and end without a full stop"
    if not lever.settings and not lever.outside and not lever.no_rule:
        yield 1, "it has no settings: add one for each engine, or `outside: true` if it is set outside the engine"
    if not lever.references:
        yield file.line("references"), "references: name where the use of this lever is documented"
    yield from _check_settings(lever, file)


def check_signals(knowledge: Knowledge, file: YamlFile) -> Found:
    """What is not right with the signals of a file that load: they read what there is not."""
    named = file.data.get("signals")
    for name in named if isinstance(named, dict) else ():  # what is none is a problem of loading
        signal = knowledge.signals.get(name)
        for metric in sorted(compile_signal(signal).metrics) if signal is not None else ():
            if metric.startswith(SIGNAL_PREFIX):
                if metric.removeprefix(SIGNAL_PREFIX) not in knowledge.signals:
                    yield file.line("signals", name), f"signal `{name}` reads `{metric}`, which is not a signal"
            elif family_of(metric, knowledge.families) is None:
                yield (
                    file.line("signals", name),
                    (f"signal `{name}` reads `{metric}`, which is not a family in signals/"),
                )
        for subquery in _too_coarse(signal) if signal is not None else ():
            yield (
                file.line("signals", name),
                (
                    f"signal `{name}`: `[{subquery}]` has fewer than {MIN_POINTS} points in a window of"
                    f" {SHORTEST.fast}: write `[$window:$resolution]`, or a step that is a tenth of the range"
                ),
            )
        if signal is not None and signal.window == "slow" and _subqueries(signal, NOMINAL) and signal.samples is None:
            yield (
                file.line("signals", name),
                f"signal `{name}`: a share of the slow window needs `samples`, because a short observation does not "
                "cover the window",
            )


def _too_coarse(signal: Signal) -> list[str]:
    """The subqueries of a signal that have too few points in the shortest window, as PromQL writes their brackets."""
    found = [one for one in _subqueries(signal, SHORTEST) if one.step and one.range / one.step < MIN_POINTS]
    return [f"{one.range:g}s:{one.step:g}s" for one in found]


def _subqueries(signal: Signal, windows: WindowDurations) -> list[Subquery]:
    found: list[Subquery] = []
    todo = list(compile_signal(signal, windows).exprs)
    while todo:
        node = todo.pop()
        found += [node] if isinstance(node, Subquery) else []
        todo += node.children()
    return found


def explained_codes(rule: Rule, knowledge: Knowledge) -> set[str]:
    """The codes of all that a rule explains, causes in between included."""
    seen: set[str] = set()
    open_ = [rule.code]
    while open_:
        of = knowledge.rules.get(open_.pop())
        new = set(of.explains) - seen if of is not None else set()
        seen |= new
        open_ += new
    return seen


def _problems(path: Path, check: Callable[[YamlFile], Found]) -> list[KnowledgeProblem]:
    file = read_yaml(path)
    return (
        [KnowledgeProblem(path, line, message) for line, message in check(file)]
        if isinstance(file, YamlFile)
        else [file]
    )


def _check_texts(rule: Rule, file: YamlFile) -> Found:
    words = rule.name.split("-")
    if len(words) > MAX_NAME_WORDS:
        yield file.line("name"), f"name: {MAX_NAME_WORDS} words at most"
    for word in sorted(EMPTY_WORDS & set(words)):
        yield file.line("name"), f"name: `{word}` has no meaning here; name the condition"
    if len(rule.title) > MAX_TITLE or not rule.title[0].isupper() or not rule.title[-1].isalnum():
        yield file.line("title"), f"title: {MAX_TITLE} characters at most, with a capital and without a full stop"
    if not rule.conclusion.rstrip().endswith("."):
        yield file.line("conclusion"), "conclusion: must be a sentence with its full stop"
    if not rule.evidence:
        yield file.line("evidence"), "evidence: add at least one query that shows what the rule saw"
    for i, query in enumerate(rule.evidence):
        if not query.title[0].isupper():
            yield file.line("evidence", i, "title"), "evidence: a title must begin with a capital"
        if not query.unit:
            yield file.line("evidence", i), "evidence: say the `unit`"


def _check_evidence(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Found:
    for i, query in enumerate(rule.evidence):
        signal = knowledge.signals.get(query.query.strip().removeprefix(SIGNAL_PREFIX))
        if signal is not None and query.unit and query.unit != signal.unit:
            yield (
                file.line("evidence", i),
                f"evidence: its unit must be {signal.unit}, the unit of the signal, not {query.unit}",
            )
        if _is_rate(query.query) and query.unit not in ("per_second", "bytes"):
            yield file.line("evidence", i), f"evidence: a rate is per_second (of bytes: bytes), not {query.unit}"


def _is_rate(query: str) -> bool:
    """Whether an evidence query is a counter's increase per second, and not a share of the time."""
    return query.count("rate(") == 1 and "/" not in query and "seconds_total" not in query


def _check_examples(rule: Rule, file: YamlFile) -> Found:
    """What `kvitals rules new` wrote and nobody wrote anew."""
    texts: list[tuple[str, tuple[str | int, ...]]] = [(rule.title, ("title",)), (rule.conclusion, ("conclusion",))]
    texts += [(param.why, ("params", name, "why")) for name, param in rule.params.items()]
    texts += [(use.why, ("levers", i, "why")) for i, use in enumerate(rule.levers)]
    texts += [(getattr(rule.page, heading), ("page", heading)) for heading in HEADINGS]
    texts += [(text, ("page", "references", i)) for i, text in enumerate(rule.page.references)]
    for text, where in texts:
        if text.lower().startswith(EXAMPLE):
            named = ".".join(key for key in where if isinstance(key, str))
            yield file.line(*where), f"{named}: still has the text of the example; write your own"


def _check_page(rule: Rule, file: YamlFile) -> Found:
    for heading in HEADINGS:
        text, line = getattr(rule.page, heading), file.line("page", heading)
        if not MIN_PAGE < len(text) < MAX_PAGE:
            yield line, f"page.{heading}: must have {MIN_PAGE} to {MAX_PAGE} characters, not {len(text)}"
        if not text.strip().endswith("."):
            yield line, f"page.{heading}: must be sentences, and the last must end with a full stop"
        for name in PLACEHOLDER.findall(text):
            yield line, f"page.{heading}: `{{{name}}}` is printed unchanged, because pages have no placeholders"
    if not rule.page.references:
        yield file.line("page", "references"), "page.references: name a source for further reading"
    text = " ".join(f"{rule.page.sees} {rule.page.why}".split())
    for name in sorted(set(re.findall(r"`\$(\w+)`", text)) - rule.params.keys()):
        yield file.line("page"), f"page: `${name}` is not a parameter of this rule"
    for number, percent, name in re.findall(r"(?<!\w)(\d[\d,]*(?:\.\d+)?)( %)?[^.\d`]*\(`\$(\w+)`\)", text):
        said = float(number.replace(",", "")) / (100 if percent else 1)
        if name in rule.params and abs(said - rule.params[name].default) > 1e-6 * abs(said):
            yield (
                file.line("page"),
                f"page: states {number}{percent} for `${name}`, but its default is {rule.params[name].default:g}",
            )


def _check_parameters(rule: Rule, file: YamlFile) -> Found:
    conditions = (rule.when, rule.clear, rule.explains_when, rule.explains_causes_when)
    used = set(re.findall(r"\$(\w+)", " ".join(conditions)))
    for name, param in rule.params.items():
        if name not in used:
            yield file.line("params", name), f"params: no condition of the rule reads `${name}`"
        if len(param.why.split()) < MIN_REASON_WORDS:
            yield file.line("params", name, "why"), f"params: state why `${name}` is {param.default:g}"


def _check_condition(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Found:
    if not knowledge.needs(rule):
        yield file.line("when"), "when: must compare at least one signal (kvitals:...)"
    for comparison in comparisons(knowledge.condition(rule)):
        for side in (comparison.left, comparison.right):
            signal = _signal_of(side, knowledge)
            if signal is not None and signal.scope != rule.scope:
                of = (
                    f"`{side}` belongs to {_a(signal.scope)} and the rule to {_a(rule.scope)}, so its value is "
                    f"never known"
                )
                remedy = f"aggregate it by ({', '.join(SCOPES[rule.scope])}) or set the rule's `scope`"
                yield file.line("when"), f"when: {of}: {remedy}"


def _check_kind(rule: Rule, file: YamlFile) -> Found:
    if rule.kind == "cause" and not rule.explains and rule.severity != "page":
        yield file.line("kind"), "kind: a cause must explain something (`explains`) or have severity page itself"
    if rule.kind == "cause" and not rule.levers:
        yield file.line("kind"), "kind: a cause needs `levers`"
    if rule.kind == "symptom" and not rule.about:
        yield file.line("kind"), "kind: a symptom must name what it is `about`, so that fitting levers are offered"
    if rule.kind != "symptom" and rule.about:
        yield file.line("about"), f"about: only symptoms have this key, and this rule is a {rule.kind}"
    if rule.binds and (rule.kind != "cause" or rule.scope != "engine"):
        yield (
            file.line("binds"),
            ("binds: only causes of engines have this key, because binding constraints are known only for engines"),
        )
    if rule.harm and (rule.kind != "cause" or not set(rule.harm) <= set(rule.explains)):
        yield file.line("harm"), "harm: only causes have this key, and it names symptoms that the rule explains"
    if rule.follows and rule.kind != "symptom":
        yield file.line("follows"), f"follows: only symptoms have this key, and this rule is a {rule.kind}"
    if rule.core and (rule.stage != "stable" or rule.severity == "info"):
        yield file.line("core"), "core: a core rule must be stable and of severity page or ticket"


def _check_explanations(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Found:
    line = file.line("explains")
    for code in rule.explains:
        effect = knowledge.rules.get(code)
        if effect is None:
            continue  # the loader says so
        if effect.kind not in ("symptom", "cause"):
            yield line, f"explains: {code} is a {effect.kind}, but only symptoms and causes can be explained"
        if rule.scope not in AROUND[effect.scope]:
            yield line, f"explains: {code} belongs to {_a(effect.scope)}, which {_a(rule.scope)} cannot explain"
    cycle = _cycle(rule, knowledge)
    if cycle:
        yield line, f"explains: {' explains '.join(cycle)}; explanations must not form a circle"
    if rule.code in rule.excluded_by:
        yield file.line("excluded_by"), f"excluded_by: {rule.code} is this rule"
    if rule.alias_of is not None and rule.alias_of not in knowledge.rules:
        yield file.line("alias_of"), f"alias_of: no rule {rule.alias_of} in codes/"


def _cycle(rule: Rule, knowledge: Knowledge) -> list[str]:
    """The codes from a rule over what it explains back to it; empty where there is no way."""
    ways = [[rule.code]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        of = knowledge.rules.get(way[-1])
        for code in of.explains if of is not None else ():
            if code == rule.code:
                return [*way, code]
            if code not in seen:
                seen.add(code)
                ways.append([*way, code])
    return []


def _check_levers(rule: Rule, knowledge: Knowledge, file: YamlFile) -> Found:
    codes = {rule.code, *explained_codes(rule, knowledge)} & knowledge.rules.keys()
    amiss: set[Quantity] = {quantity for code in codes for quantity in knowledge.rules[code].about}
    before: list[Lever] = []
    for i, use in enumerate(rule.levers):
        lever, line = knowledge.levers[use.lever], file.line("levers", i)
        if lever in before:
            yield line, f"levers: {lever.name} is offered twice"
        if amiss and not amiss & set(lever.moves):
            yield (
                line,
                (
                    f"levers: {lever.name} moves {', '.join(lever.moves)}, but the effects that this rule explains "
                    "are about "
                    f"{', '.join(sorted(amiss))}: kvitals never offers the lever"
                ),
            )
        systems = {setting.system for setting in lever.settings}
        if rule.applies.systems and systems and not lever.outside and not systems & set(rule.applies.systems):
            yield (
                line,
                f"levers: {lever.name} has no setting for {', '.join(rule.applies.systems)}: kvitals never offers it",
            )
        for other in before:
            if _against(lever, other) and _always_offered(rule, other, knowledge):
                yield (
                    line,
                    f"levers: {lever.name} contradicts {other.name}, which always comes first: kvitals never offers it",
                )
        before.append(lever)


def _against(one: Lever, other: Lever) -> bool:
    return one.name in other.contradicts or other.name in one.contradicts


def _always_offered(rule: Rule, lever: Lever, knowledge: Knowledge) -> bool:
    """Whether nothing could keep a lever of a rule from being offered."""
    use = next(use for use in rule.levers if use.lever == lever.name)
    return not (use.when or lever.possible or lever.in_force) and (lever.outside or not lever.settings)


def _check_settings(lever: Lever, file: YamlFile) -> Found:
    for i, setting in enumerate(lever.settings):
        dashed = setting.flag.startswith("-")
        if setting.by == "flag" and not dashed:
            text = "is not a flag: a flag begins with a dash, and `by` names anything else (environment, request)"
            yield file.line("settings", i, "flag"), f"settings: `{setting.flag}` {text}"
        if setting.by != "flag" and dashed:
            yield file.line("settings", i, "by"), f"settings: `{setting.flag}` is a flag, so leave out `by`"
        if TO in setting.value:
            if not setting.to:
                yield file.line("settings", i, "value"), f"settings: `{TO}` in `value` needs `to` (PromQL)"
        elif bool(setting.to) == bool(setting.value):
            yield file.line("settings", i), "settings: either `to` (PromQL) or `value` (text)"
        for other in lever.settings[:i]:
            version = _common_version(other, setting)
            if other.system == setting.system and not other.when and version:
                never = f"for {setting.system} {version} it is never used"
                yield (
                    file.line("settings", i),
                    (
                        f"settings: {never}, because an earlier setting is for the same engine and versions and has "
                        "no `when`"
                    ),
                )
                break


def _common_version(one: SystemSetting, other: SystemSetting) -> str:
    """A version that both settings are for, of those that their bounds name or that lie just beyond; else empty."""
    named = re.findall(r"\d+(?:\.\d+)*", f"0 {one.versions} {other.versions}")
    tried = [version for name in named for version in (name, f"{name}.0.1")]
    return next((v for v in tried if in_range(v, one.versions) and in_range(v, other.versions)), "")


def _signal_of(side: Expr, knowledge: Knowledge) -> Signal | None:
    """The signal that a side of a comparison is, where it is one as it stands."""
    if not isinstance(side, Selector) or not side.name.startswith(SIGNAL_PREFIX):
        return None
    return knowledge.signals.get(side.name.removeprefix(SIGNAL_PREFIX))


def _always_decided(rule: Rule, knowledge: Knowledge) -> bool:
    """Whether a rule looks only at what every engine has."""
    todo, seen = list(knowledge.needs(rule)), set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        for metric in compile_signal(knowledge.signals[name]).metrics:
            signal = metric.removeprefix(SIGNAL_PREFIX)
            if signal == metric and metric != ENTITY_FAMILY:
                return False
            if signal != metric and signal not in seen:
                todo.append(signal)
    raw = names(parse(expand(rule.when, parameters(rule))))
    return all(metric.startswith(SIGNAL_PREFIX) or metric == ENTITY_FAMILY for metric in raw)


def _a(scope: str) -> str:
    return f"an {scope}" if scope == "engine" else f"a {scope}"
