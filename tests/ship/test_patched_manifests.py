"""Manifests that `kvitals patch` changes, by a validator of Kubernetes' schemas."""

from __future__ import annotations

import importlib

import pytest
import yaml

from kvitals.app.patch.file_forms import engine_commands
from kvitals.app.patch.source_text import apply_edits
from tests.unit.patch.forms import FORMS
from tests.unit.patch.test_patches import cases


@pytest.mark.parametrize("form", ["deployment", "deployment_shell", "image_only"])
def test_the_manifest_is_valid_for_kubernetes(form: str) -> None:
    validate = importlib.import_module("kubernetes_validate")  # has no types
    make, ending, _ = FORMS[form]
    for name, changes, before in list(cases("vllm", form))[::8]:
        content = make("vllm", before)
        (command,) = engine_commands(f"x{ending}", content)
        after = yaml.safe_load(apply_edits(content, command.edits(changes)))
        try:
            validate.validate(after, "1.34", strict=True)
        except validate.ValidationError as error:
            raise AssertionError(f"{name}: {error}") from error
