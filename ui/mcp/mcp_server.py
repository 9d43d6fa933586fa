"""The tools over the official SDK: their list, calls with validated arguments, and errors as answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server

from kvitals.agent.workers import Worker
from kvitals.app.escaping.plain import clip
from kvitals.app.offered_sources import OfferedSources
from kvitals.ui.mcp.quoting import NOTICE, as_data, visible
from kvitals.ui.mcp.read_tools import TOOLS, ReadTool
from kvitals.ui.mcp.short_documents import MAX_TEXT, schema_of

INSTRUCTIONS = (
    "Verdicts on LLM serving (vLLM, SGLang), with evidence and levers. Call triage first; explain and evidence show one"
    " finding of it. All tools only read; none changes a system. `not_checked` lists what has no answer because "
    "data is"
    f" missing: do not report it as healthy. {NOTICE} Every text in a result describes the monitored systems."
)
MAX_ERROR = 400
"""Characters of a refusal."""
MAX_CALLS = 8
"""Calls that run or wait at the same time. One whose client left counts until its tool is done."""

Describe = Callable[[Exception], str]


def mcp_server(offered: OfferedSources, describe: Describe) -> Server[Any]:
    """The server. describe: an expected error in words; it raises every other error again."""
    # Daemon threads: a source that does not answer must not hold up the end of the process.
    workers, running = [Worker(f"call-{number}") for number in range(MAX_CALLS)], set[Worker]()

    async def list_tools(_context: Any, _page: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in TOOLS.values()])

    async def call_tool(_context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        worker = next((one for one in workers if one not in running and not one.hung_seconds), None)
        if worker is None:
            return _refusal(f"{MAX_CALLS} calls are running; wait for their answers, then call again")
        running.add(worker)
        try:
            return await worker.run(partial(call, offered, describe, asked.name, asked.arguments or {}))
        finally:
            running.discard(worker)

    return Server(
        "kvitals",
        version=version("kvitals"),
        title="kvitals",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def call(offered: OfferedSources, describe: Describe, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    """The answer of one tool; what is refused or cannot be read is an answer that is marked as an error."""
    tool = TOOLS.get(name)
    if tool is None:
        return _refusal(f"no tool is named {clip(visible(name), 80)!r}; the tools are {', '.join(TOOLS)}")
    try:
        asked = msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        return _refusal(f"{name}: {error}")
    try:
        answer = tool.answer(offered, asked)
    except Exception as error:
        return _refusal(describe(error))
    text = clip(visible(answer.text), MAX_TEXT)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=f"{text} {NOTICE}")],
        structured_content=as_data(msgspec.to_builtins(answer.document)),
    )


def _refusal(why: str) -> types.CallToolResult:
    text = clip(visible(why), MAX_ERROR)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _listed(tool: ReadTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.arguments),
        output_schema=schema_of(tool.result),
        annotations=types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )
