"""What other settings of an engine would do, and what other memory, routing or eviction would have made of the lookups
seen: the numbers of `kvitals whatif`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import altair as alt
import streamlit as st

from kvitals.app.errors import UsageError
from kvitals.app.lookups import Lookups, parse_capacity, parse_size
from kvitals.diagnoser.replay_worth import Worth, base_of, worth
from kvitals.kvcache.eviction import POLICIES, Policy
from kvitals.kvcache.routing import ROUTINGS, Routing
from kvitals.kvcache.sampling import SampleError
from kvitals.kvcache.whatif import MAX_NODES, ReplayPlan, ReplayRow, what_if
from kvitals.rules.finding import Triage
from kvitals.ui.formats import short
from kvitals.ui.web import data, graphs, header, source_registry, state, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, literal
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views import settings_forecast

MAX_ROWS = 60
MAX_WORK = 30_000_000
"""Block references replayed for one answer; some half a minute."""

MAX_TEXT = 200


def show(place: str, look: PageWindow | None) -> None:
    """The twin of each engine, then the lookups replayed."""
    triage = data.triage(place, look)  # first: while there is none, the link's lever is not taken
    lever, engine = state.take_pick("lever"), state.take_pick("engine")
    header.pick_hint("lever", lever, source_registry.knowledge().levers, "")
    header.pick_hint("engine", engine, [row.entity.title for row in triage.engines], "")
    st.markdown("### Latency and throughput with other settings")
    settings_forecast.show(place, triage, lever, engine)
    st.markdown("### Hit rate with another cache, routing or eviction")
    try:
        _replay(place, look, lever, engine)
    except UnansweredError as error:
        header.failure(error.failure, key="lookups-failure")


def _replay(place: str, look: PageWindow | None, lever: str, engine: str) -> None:
    """The form, then its rows. Raises UnansweredError, NotYetError."""
    # All look-ups are replayed, whatever the window: a cache's past is part of what it finds.
    of = replace(data.lookups(place), title=source_registry.place_name(place))
    _about(of)
    linked = _linked(place, look, of, lever, engine)
    with st.form("what-if"):
        first, second = st.columns(2)
        capacities = first.text_input(
            "Capacities of one node",
            value="1x,2x,4x,inf" if of.today else "1000000t,inf",
            max_chars=MAX_TEXT,
            key="what-if-capacities",
            help="blocks (1953), tokens (3000000t), a multiple of today's (2x), unlimited (inf)",
        )
        today = second.text_input(
            "Today's capacity", value=str(of.today or ""), max_chars=40, help="blocks, or tokens as in 3000000t"
        )
        policies = first.multiselect("Eviction", POLICIES, default=["lru"], key="what-if-policies")
        routings = second.multiselect("Routing", ROUTINGS, default=["round-robin"], key="what-if-routings")
        nodes = first.number_input("Nodes", min_value=1, max_value=MAX_NODES, value=1)
        host = second.text_input("Host tier of a node", value="", max_chars=40, help="blocks or tokens; empty: none")
        rate = first.number_input(
            "Prompt tokens a node computes per second", min_value=0.0, value=0.0, help="for times; 0: unknown"
        )
        sample = second.select_slider("Share of blocks sampled", [1.0, 0.5, 0.2, 0.1, 0.05, 0.01], value=1.0)
        asked = st.form_submit_button("Replay", type="primary", icon=":material/play_arrow:")
    if asked or linked:
        try:
            of = replace(of, today=parse_size(today, of.accesses.block_size, "today's capacity")) if today else of
            plan = _plan(capacities, policies, routings, int(nodes), host, rate or None, float(sample), of)
            with st.spinner("replaying"):
                st.session_state["what-if-answer"] = (place, of.today, plan, what_if(of.accesses, plan))
        except (UsageError, SampleError, ValueError) as error:
            st.session_state.pop("what-if-answer", None)
            header.show_empty("Replay failed", str(error))
            return
    kept = st.session_state.get("what-if-answer")
    if kept is None or kept[0] != place:
        st.caption("No result yet.")
        return
    _, size, plan, rows = kept
    _answer(replace(of, today=size), plan, rows)


def _linked(place: str, look: PageWindow | None, of: Lookups, named: str, engine: str) -> bool:
    """Fill the form in with the replay of the lever that a link names; whether there is one."""
    lever = source_registry.knowledge().levers.get(named)
    if lever is None or lever.replay is None or not of.today:
        return False
    how = lever.replay
    size = f"{how.capacity:g}x"
    if how.by_setting:
        size = _setting(data.triage(place, look), lever.name, engine) or size
    st.session_state["what-if-capacities"] = "1x" if size == "1x" else f"1x,{size}"
    st.session_state["what-if-policies"] = list(dict.fromkeys(["lru", how.policy]))
    st.session_state["what-if-routings"] = list(dict.fromkeys(["round-robin", *([how.routing] if how.routing else [])]))
    st.markdown(f"**{literal(lever.title)}**, with the finding's setting:")
    return True


def _setting(triage: Triage, lever: str, engine: str) -> str:
    """The number of blocks that the document proposes for a lever, on `engine` where a link names one; empty: it
    proposes none."""
    causes = [one for one in triage.causes if engine in ("", one.entity.title)]
    advices = [one for finding in causes for one in finding.levers if one.lever == lever and one.setting]
    return next((one.setting.to for one in advices if one.setting and one.setting.to.isdigit()), "")


def _about(of: Lookups) -> None:
    accesses = of.accesses
    observed = "an unknown share" if accesses.observed is None else f"{accesses.observed:.0%}"
    st.markdown(f"{of.extent}.")
    st.caption(literal(f"observed: {observed} of lookups ({accesses.learned or 'nothing is known about the others'})"))


def _plan(
    capacities: str,
    policies: Sequence[str],
    routings: Sequence[str],
    nodes: int,
    host: str,
    rate: float | None,
    sample: float,
    of: Lookups,
) -> ReplayPlan:
    """What was asked for. Raises UsageError, ValueError."""
    if not policies or not routings:
        raise UsageError("choose at least one eviction policy and one routing")
    sizes = tuple(dict.fromkeys(parse_capacity(text, of) for text in capacities.split(",") if text.strip()))
    rows = len(sizes) * len(policies) * len(routings)
    if not sizes or rows > MAX_ROWS:
        raise UsageError(f"this gives {rows} rows, but 1 to {MAX_ROWS} can be replayed at once; choose fewer values")
    if rows * of.accesses.references * sample > MAX_WORK:
        raise UsageError("this takes too long here: use a smaller share of blocks, or `kvitals whatif` in a terminal")
    known_policies: tuple[Policy, ...] = tuple(p for p in get_args(Policy) if p in policies)
    known_routings: tuple[Routing, ...] = tuple(r for r in get_args(Routing) if r in routings)
    return ReplayPlan(
        capacities=sizes,
        nodes=nodes,
        routings=known_routings,
        policies=known_policies,
        rate=sample,
        host_blocks=parse_size(host, of.accesses.block_size, "host tier") if host.strip() else 0,
        prefill_rate=rate,
    )


def _answer(of: Lookups, plan: ReplayPlan, rows: list[ReplayRow]) -> None:
    base = base_of(rows, of.today)
    worths = [worth(row, base, len(of.accesses), plan.prefill_rate) for row in rows]
    best = max(rows, key=lambda row: row.token_hit_rate)
    saved = worths[rows.index(best)].prefill_saved
    figures = [
        ("base", f"{base.token_hit_rate:.1%}", _name(base)),
        ("best of these", f"{best.token_hit_rate:.1%}", _name(best)),
        ("prefill work", _change(saved) or "unknown", "prompt tokens to compute, best against base"),
    ]
    header.figures(figures, key="what-if-figures")
    graphs.draw(_drawn(rows, base), key="what-if-chart")
    tables.show([_row(row, gain, row is base) for row, gain in zip(rows, worths, strict=True)], "what-if-rows")
    hit = of.recorded_hit_rate
    if hit is not None:
        st.markdown(
            f"Hit rate when recorded: **{hit:.1%}**. If today's size gives a very different rate, the replay "
            f"does not fit this engine."
        )
    for note in _notes(of, plan, rows):
        st.caption(note)


def _name(row: ReplayRow) -> str:
    size = "endless" if row.capacity_blocks is None else f"{row.capacity_blocks:,} blocks"
    return f"{row.policy}, {row.routing}, {size}" if row.nodes > 1 else f"{row.policy}, {size}"


def _row(row: ReplayRow, gain: Worth, is_base: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "": "base" if is_base else "",
        "routing": row.routing,
        "policy": row.policy,
        "blocks": "endless" if row.capacity_blocks is None else f"{row.capacity_blocks:,}",
        "hit rate": f"{row.token_hit_rate:.2%}" + (f" ± {row.error:.2%}" if row.sample_rate < 1 else ""),
        "to prefill": short(row.prefill_tokens),
        "prefill work": "" if is_base else _change(gain.prefill_saved),
    }
    if row.host_token_hit_rate is not None:
        told["hit rate of host tier"] = f"{row.host_token_hit_rate:.2%}"
    if gain.seconds_saved is not None:
        told |= {
            "prefill seconds": f"{-gain.seconds_saved:+,.0f}",
            "TTFT": f"{1000 * (gain.ttft_change or 0):+,.0f} ms",
        }
    if row.nodes > 1:
        told["busiest"] = f"{row.load_max_over_mean:.2f}"
    return told


def _change(saved: float | None) -> str:
    """A saved share as the change against the base, as tiles and tables have it: less is negative; empty: unknown."""
    return f"{-saved:+.1%}" if saved is not None else ""


def _drawn(rows: list[ReplayRow], base: ReplayRow) -> Any:
    told = [
        {
            "name": f"{i}. {_name(row)}{', base' if row is base else ''}",
            "found": row.token_hit_rate,
            "what": "base" if row is base else "tried",
        }
        for i, row in enumerate(rows, 1)
    ]
    height = 26 * len(told) + graphs.AXIS + graphs.TITLE
    return (
        alt.Chart(
            graphs.values(told),
            height=height,
            padding=graphs.PADDING,
        )
        .mark_bar(height=16)
        .encode(
            y=alt.Y("name:N", sort=None, title=None, axis=graphs.names(280)),
            x=alt.X("found:Q", title="hit rate", axis=value_axis("ratio", [{"value": 1}])),
            color=alt.Color(
                "what:N",
                scale=alt.Scale(domain=["base", "tried"], range=["#9a9a9a", "#4a94c9"]),
                legend=None,
            ),
            tooltip=["name:N", alt.Tooltip("found:Q", format=".2%")],
        )
    )


def _notes(of: Lookups, plan: ReplayPlan, rows: Sequence[ReplayRow]) -> list[str]:
    notes = [f"{count(len(rows), 'row')}; blocks: of one node; prefill work, seconds and TTFT: change against the base"]
    if of.guesses_sessions(rows):
        notes.append(
            "Sessions are guessed from how prompts begin: results of sticky, prefix and priority may "
            "be points too high."
        )
    if plan.rate < 1:
        notes.append("±: two standard errors of the sampling.")
    if plan.prefill_rate is not None:
        notes.append("Seconds and mean TTFT include only prefill; shorter queues save additional time.")
    return notes
