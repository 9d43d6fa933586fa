"""Files that start an engine, one of each form, with ENGINE's command and FLAGS in their places."""

from __future__ import annotations

import json

MODULES = {"vllm": ["vllm", "serve", "org/model"], "sglang": ["python3", "-m", "sglang.launch_server"]}


def shell(system: str, flags: list[str]) -> str:
    words = " \\\n  ".join([" ".join(MODULES[system]), "--port 8000", *_quoted(flags)])
    return (
        f"#!/bin/sh\nset -e  # stop at errors\nexport CUDA_VISIBLE_DEVICES=0\nexec {words} >/var/log/engine.log 2>&1\n"
    )


def one_line(system: str, flags: list[str]) -> str:
    return " ".join([*MODULES[system], "--port", "8000", *_quoted(flags)])


def unit(system: str, flags: list[str]) -> str:
    words = " \\\n    ".join([" ".join(MODULES[system]), "--port 8000", *_quoted(flags)])
    return (
        "[Unit]\nDescription=an engine\n\n[Service]\n# the old line is taken back\nExecStart=\n"
        f"ExecStart=/usr/bin/env {words}\nRestart=on-failure\n"
    )


def compose(system: str, flags: list[str]) -> str:
    items = "".join(f"      - {json.dumps(word)}\n" for word in [*MODULES[system], "--port", "8000", *flags])
    return (
        "services:\n  engine:  # the one that serves\n    image: example/engine:1\n    command:\n"
        f'{items}    restart: always\n  redis:\n    image: redis\n    command: ["redis-server", "--save", "60"]\n'
    )


def compose_text(system: str, flags: list[str]) -> str:
    words = "\n      ".join([" ".join(MODULES[system]), "--port 8000", *_quoted(flags)])
    return f"services:\n  engine:\n    image: example/engine:1\n    command: >-\n      {words}\n    restart: always\n"


def deployment(system: str, flags: list[str]) -> str:
    command = ", ".join(json.dumps(word) for word in MODULES[system])
    items = "".join(f"        - {json.dumps(word)}\n" for word in ["--port", "8000", *flags])
    return _pod(f"        command: [{command}]\n        args:\n{items}")


def deployment_flow(system: str, flags: list[str]) -> str:
    words = ", ".join(json.dumps(word) for word in [*MODULES[system], "--port=8000", *flags])
    return _pod(f"        command: [{words}]  # all of it\n")


def deployment_shell(system: str, flags: list[str]) -> str:
    words = " \\\n            ".join([" ".join(MODULES[system]), "--port 8000", *_quoted(flags)])
    return _pod(
        f'        command: ["/bin/sh", "-c"]\n        args:\n        - |\n          ulimit -n 65536 && exec {words}\n'
    )


def deployment_quoted_shell(system: str, flags: list[str]) -> str:
    words = json.dumps(" ".join([*MODULES[system], "--port 8000", *_quoted(flags)]))
    return _pod(f"        command: [sh, -c, {words}]\n")


def image_only(system: str, flags: list[str]) -> str:
    image = {"vllm": "vllm/vllm-openai:v0.32.0", "sglang": "lmsysorg/sglang:v0.5.23"}[system]
    items = "".join(f"        - {json.dumps(word)}\n" for word in ["--port", "8000", *flags])
    return _pod(f"        args:\n{items}", image)


def inference_service(system: str, flags: list[str]) -> str:
    items = "".join(f"          - {json.dumps(word)}\n" for word in [*MODULES[system], "--port", "8000", *flags])
    return (
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata:\n  name: chat\nspec:\n"
        "  replicas: 2\n  template:\n    containers:\n      - name: main\n        command:\n"
        f'{items}        resources:\n          limits: {{nvidia.com/gpu: "1"}}\n'
    )


def dynamo_graph(system: str, flags: list[str]) -> str:
    items = "".join(f"            - {json.dumps(word)}\n" for word in ["--model", "org/model", *flags])
    return (
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata:\n  name: graph\nspec:\n  services:\n"
        "    Frontend:\n      replicas: 1\n    Worker:\n      replicas: 2\n"
        "      extraPodSpec:\n        mainContainer:\n"
        f"          image: example/runtime:1\n          command:\n            - python3\n            - -m\n"
        f"            - dynamo.{system}\n          args:\n{items}"
    )


def llm_d_values(system: str, flags: list[str]) -> str:
    items = "".join(f"        - {json.dumps(word)}\n" for word in ["--port", "8200", *flags])
    return (
        "multinode: false\ndecode:\n  replicas: 1\n  containers:\n    - name: vllm\n      image: example/llm-d:1\n"
        f"      modelCommand: vllmServe\n      command: []\n      args:\n{items}      mountModelVolume: true\n"
    )


def production_stack(system: str, flags: list[str]) -> str:
    items = "".join(f"          - {json.dumps(word)}\n" for word in ["--disable-log-requests", *flags])
    return (
        "servingEngineSpec:\n  modelSpec:\n    - name: chat\n      repository: vllm/vllm-openai\n      tag: v0.32.0\n"
        "      modelURL: org/model\n      vllmConfig:\n        # the shape of the pool\n        maxNumSeqs: 7\n"
        f"        maxModelLen: 4096\n        extraArgs:\n{items}"
    )


FORMS = {
    one.__name__: (one, ending, systems)
    for one, ending, systems in (
        (shell, ".sh", ("vllm", "sglang")),
        (one_line, ".cmd", ("vllm", "sglang")),
        (unit, ".service", ("vllm", "sglang")),
        (compose, ".yaml", ("vllm", "sglang")),
        (compose_text, ".yaml", ("vllm", "sglang")),
        (deployment, ".yaml", ("vllm", "sglang")),
        (deployment_flow, ".yaml", ("vllm", "sglang")),
        (deployment_shell, ".yaml", ("vllm", "sglang")),
        (deployment_quoted_shell, ".yaml", ("vllm", "sglang")),
        (image_only, ".yaml", ("vllm", "sglang")),
        (inference_service, ".yaml", ("vllm",)),
        (dynamo_graph, ".yaml", ("vllm", "sglang")),
        (llm_d_values, ".yaml", ("vllm",)),
        (production_stack, ".yaml", ("vllm",)),
    )
}


def _quoted(flags: list[str]) -> list[str]:
    return [f"'{word}'" if any(c in word for c in '{}" ') else word for word in flags]


def _pod(container: str, image: str = "example/engine:1") -> str:
    return (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: engine\nspec:\n"
        "  selector:\n    matchLabels: {app: engine}\n"
        "  template:\n    metadata:\n      labels: {app: engine}\n    spec:\n      containers:\n      - name: engine\n"
        f"        image: {image}\n{container}        ports:\n        - containerPort: 8000  # metrics too\n"
    )
