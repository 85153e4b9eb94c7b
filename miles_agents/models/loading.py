"""Causal language models in Hugging Face folders: load with every weight accounted for, save with the tokenizer."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from miles_agents.errors import UsageError

Dtype = Literal["float32", "bfloat16"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE_FOLDER = "additional_chat_templates"

_TORCH_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

logger = logging.getLogger(__name__)


def load_causal_lm(folder: Path, *, dtype: Dtype = "float32") -> PreTrainedModel:
    """Load a causal language model from a local Hugging Face folder, in evaluation mode, on the CPU.

    Nothing is downloaded and no code of the folder is run. A weight the folder lacks is an error, never a random
    initial value.

    Raises:
        UsageError: no model folder, not a causal language model, or weights that are missing, truncated or of
            another shape; the message names the folder and the first bad weight.
    """
    if dtype not in _TORCH_DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}. Allowed: {', '.join(_TORCH_DTYPES)}")
    _check_folder(folder)
    try:
        with _quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=_TORCH_DTYPES[dtype],
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the folder's name
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"cannot load a model from {folder}: {_first_line(error)}") from error
    _check_report(folder, report)
    return cast(PreTrainedModel, model.eval())


def save_causal_lm(model: PreTrainedModel, folder: Path, *, tokenizer_from: Path | None = None) -> None:
    """Write the model into an existing folder that `AutoModelForCausalLM.from_pretrained` loads.

    Args:
        model: its weights are written as they are, tied ones once.
        folder: exists; files of the same name are replaced.
        tokenizer_from: a folder whose tokenizer and chat template files are copied beside the weights.

    Raises:
        OSError: the disk is full or refuses the write.
    """
    try:
        with _quiet_transformers():
            model.save_pretrained(folder)
    except SafetensorError as error:
        raise _as_os_error(error, folder) from error
    if tokenizer_from is not None:
        copy_tokenizer(tokenizer_from, folder)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer and chat template files of a model folder into another, byte for byte."""
    if source.resolve() == target.resolve():
        return
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / TEMPLATE_FOLDER).is_dir():
        shutil.copytree(source / TEMPLATE_FOLDER, target / TEMPLATE_FOLDER, dirs_exist_ok=True)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"no model folder {folder}")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no Hugging Face model folder: it has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"cannot read {folder / 'config.json'}: {_first_line(error)}") from error
    architectures: list[str] = config.architectures or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        raise UsageError(f"{folder} holds a {architectures[0]}; give the folder of a causal language model")


def _check_report(folder: Path, report: dict[str, object]) -> None:
    missing = sorted(cast("set[str]", report["missing_keys"]))
    mismatched = sorted(str(entry[0]) for entry in cast("set[tuple[str, object, object]]", report["mismatched_keys"]))
    if missing:
        raise UsageError(f"{folder} lacks {len(missing)} weights of its model, the first is '{missing[0]}'")
    if mismatched:
        raise UsageError(f"'{mismatched[0]}' in {folder} has another shape than config.json says")
    unexpected = sorted(cast("set[str]", report["unexpected_keys"]))
    if unexpected:
        logger.warning("%s has %d weights its model does not use, e.g. %s", folder, len(unexpected), unexpected[0])


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _as_os_error(error: SafetensorError, folder: Path) -> Exception:
    """The OSError inside a safetensors write error, which carries the number only in its text."""
    code = re.search(r"(?:os error|code:) (\d+)", str(error))
    if code is None:
        return error
    number = int(code[1])
    return OSError(number, os.strerror(number) if number in errno.errorcode else str(error), str(folder))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no load report: what matters of it is checked and raised here."""
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
