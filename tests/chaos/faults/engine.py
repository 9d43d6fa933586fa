"""An engine that is under load: its recorded page goes on each second, and it says its version.

    python -m tests.chaos.faults.engine PORT [--host 127.0.0.1] [--seed 1] [--version 0.32.0]

Its counters begin where the recording ended, and its start time is now, as of an engine that was just started. With a
version before 0.10 the names are those of that time, so the page is of its kind and not recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time

from aiohttp import web

from benchmarks.pages import Engine

OLD_NAMES = {
    b"vllm:inter_token_latency_seconds": b"vllm:time_per_output_token_seconds",
    b"vllm:kv_cache_usage_perc": b"vllm:gpu_cache_usage_perc",
}
"""What two metrics were called before vLLM 0.9.2 and 0.10.2 (rules/engines/vllm.yaml has the ranges)."""

_START = re.compile(rb"(?m)^(process_start_time_seconds) .*$")


async def serve(host: str, port: int, seed: int, version: str) -> None:
    """Serve until killed."""
    engine, started = Engine(seed), time.time()
    is_old = tuple(map(int, version.split(".")[:2])) < (0, 9)

    async def metrics(_: web.Request) -> web.Response:
        page = _START.sub(rb"\1 %.3f" % started, engine.page())
        for new, old in OLD_NAMES.items() if is_old else ():
            page = page.replace(new, old)
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def told(_: web.Request) -> web.Response:
        return web.json_response({"version": version})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/version", told)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_address=True).start()
    while True:
        engine.advance()
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", default="0.32.0")
    options = parser.parse_args()
    asyncio.run(serve(options.host, options.port, options.seed, options.version))
