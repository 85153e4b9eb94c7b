"""Composition: command-line words → one checked, typed configuration.

Hydra composes the YAML files over the dataclasses of `schema.py`. What Hydra lets through silently (unknown keys
added with `+`, a key given twice) is refused here, and its errors are restated as one message that says what to type.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from miles_agents.configs import schema
from miles_agents.errors import ConfigError, did_you_mean

_ASSIGNMENT = re.compile(r"^(?P<prefix>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?$", re.S)
_PLAIN = re.compile(r"[\w./:+-]*", re.ASCII)
_STRUCTURED = re.compile(r"""\[.*\]|\{(?:\s*|.*:.*)\}|\$\{.*\}|'.*'|".*\"""", re.S)
_SELECTABLE = ("env", *schema.GROUPS)


@dataclasses.dataclass(frozen=True, slots=True)
class Override:
    """One `key=value` word of the command line."""

    key: str
    value: str

    @property
    def selects_group(self) -> bool:
        """True for `engine=local`, False for `engine.slots=4`."""
        return self.key in _SELECTABLE

    def for_hydra(self) -> str:
        """The word as Hydra's grammar wants it: what is no plain word, list, mapping or quoted text is quoted.

        A mapping is added to the one that is there, whose keys Hydra would take for the only ones. Its own key is known
        by then (`_check_keys`), and typed mappings stay closed.
        """
        if self.value.startswith("{") and _STRUCTURED.fullmatch(self.value):
            return f"++{self.key}={self.value}"
        if _PLAIN.fullmatch(self.value) or _STRUCTURED.fullmatch(self.value):
            return f"{self.key}={self.value}"
        return f"{self.key}={_quoted(self.value)}"


def _quoted(text: str) -> str:
    # Inside quotes a backslash stands for itself, except in front of a quote.
    inside = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text)
    return f"'{inside}'"


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """Check and split the `key=value` words.

    Raises:
        ConfigError: a word that is no `key=value`, a deletion, or one key given twice.
    """
    overrides: list[Override] = []
    for word in words:
        match = _ASSIGNMENT.match(word)
        if match is None or match["value"] is None or match["prefix"] == "~":
            raise ConfigError(f"cannot read {word!r}: write key=value, e.g. trainer.lr=1e-4 or env=python_math")
        overrides.append(Override(match["key"], match["value"]))
    for override in overrides:
        values = [other.value for other in overrides if other.key == override.key]
        if len(values) > 1:
            raise ConfigError(f"'{override.key}' is given twice ({', '.join(values)}): give it once")
    return overrides


def listed_environments(overrides: Sequence[Override]) -> list[str]:
    """The names in `env=[…]`; none if `env=` names one environment or is not given.

    Raises:
        ConfigError: a list without a name, or one name twice.
    """
    given = next((override.value.strip() for override in overrides if override.key == "env"), "")
    if not (given.startswith("[") and given.endswith("]")):
        return []
    names = [name.strip().strip("'\"") for name in given[1:-1].split(",")]
    if not all(names):
        raise ConfigError(f"env={given}: write the environments with commas between them, 'env=[gsm8k,svamp]'")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"env={given}: {twice[0]} is given twice")
    return names


def short_names(names: Sequence[str]) -> list[str]:
    """Names for folders and tables: `./my_envs.py:Weather` → `Weather`; numbered where several are alike."""
    short = [re.sub(r"\W+", "_", name.rsplit(":", 1)[-1].rsplit("-v", 1)[0]) for name in names]
    return [each if short.count(each) == 1 else f"{each}_{number}" for number, each in enumerate(short, start=1)]


def env_schema(env_class: type[Any], env_id: str) -> type[schema.EnvConfig]:
    """A dataclass of the keyword arguments of an environment's `__init__`, plus its `configurable` attributes.

    Raises:
        ConfigError: an argument without a default that has no annotation OmegaConf can check.
    """
    fields: dict[str, tuple[Any, Any]] = {}
    if env_class.__init__ is not object.__init__:
        hints = get_type_hints(env_class.__init__)
        for parameter in list(inspect.signature(env_class.__init__).parameters.values())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            default = MISSING if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (_checkable(hints.get(parameter.name, Any)), default)
    for name in getattr(env_class, "configurable", ()):
        default = getattr(env_class, name)
        fields.setdefault(name, (type(default), default))
    made = [(name, kind, _field_of(default)) for name, (kind, default) in fields.items()]
    return dataclasses.make_dataclass(
        f"{env_class.__name__}Config",
        [*made, ("id", str, dataclasses.field(default=env_id))],
        bases=(schema.EnvConfig,),
    )


def _field_of(default: Any) -> Any:
    value = _plain(default)
    if isinstance(value, (list, dict)):
        return dataclasses.field(default_factory=lambda: value)
    return dataclasses.field(default=value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, dict) else value


def _checkable(annotation: Any) -> Any:
    """The annotation if OmegaConf can check it, else Any (the environment checks the value itself)."""
    try:
        probe = dataclasses.make_dataclass("Probe", [("value", annotation, dataclasses.field(default=MISSING))])
        OmegaConf.structured(probe)
    except (OmegaConfBaseException, TypeError, ValueError):
        return Any
    return annotation


def register_schemas() -> None:
    """Put the dataclasses into Hydra's ConfigStore; may be called again."""
    store = ConfigStore.instance()
    store.store(name="_train_schema", node=schema.TrainConfig)
    store.store(name="_evaluate_schema", node=schema.EvaluateConfig)
    store.store(name="_play_schema", node=schema.PlayConfig)
    for group, classes in schema.GROUPS.items():
        for cls in classes:
            store.store(group=group, name=f"_{cls.__name__}", node=cls)


def config_names(group: str, config_dir: Path | None = None) -> list[str]:
    """The names that `group=NAME` may take from YAML files."""
    folders = [Path(__file__).parent, *([config_dir] if config_dir else [])]
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def env_id_of(name: str, config_dir: Path | None = None) -> str:
    """The `id` that the YAML file `env/NAME.yaml` sets."""
    for folder in (config_dir, Path(__file__).parent):
        file = folder / "env" / f"{name}.yaml" if folder else None
        if file is not None and file.is_file():
            loaded = OmegaConf.load(file)
            return str(loaded.get("id", name)) if isinstance(loaded, DictConfig) else name
    raise ConfigError(f"no config env/{name}.yaml")


def compose_config(
    config_name: str,
    overrides: Sequence[Override],
    *,
    env_node: type[schema.EnvConfig],
    env_is_config: bool,
    config_dir: Path | None = None,
) -> DictConfig:
    """Compose `train`, `evaluate` or `play` with the overrides.

    Args:
        config_name: `"train"`, `"evaluate"` or `"play"`.
        overrides: the command line's words.
        env_node: the environment's schema, from `env_schema`.
        env_is_config: the `env=` word names a YAML file (else `env_node` itself is the configuration).
        config_dir: a folder of the user's own with YAML files by group.

    Raises:
        ConfigError: unknown key, wrong type, unknown option of a group; one message that says what to type.
    """
    register_schemas()
    store = ConfigStore.instance()
    store.store(group="env", name="_schema", node=env_node)
    store.store(group="env", name="_selected", node=env_node)
    selected = [override for override in overrides if override.selects_group]
    values = [override for override in overrides if not override.selects_group]
    words = []
    for override in selected:
        if override.key == "env" and not env_is_config:
            words.append("env=_selected")
        elif override.key == "model" and override.value not in config_names("model", config_dir):
            name = Path(override.value).name or override.value
            store.store(group="model", name="_given", node=schema.ModelConfig(name=name, source=override.value))
            words.append("model=_given")
        else:
            _check_option(override, config_name, config_dir)
            words.append(override.for_hydra())
    if config_dir is not None:
        words.append(f"hydra.searchpath=[{_quoted(f'file://{config_dir.resolve()}')}]")
    GlobalHydra.instance().clear()
    with initialize_config_module("miles_agents.configs", version_base="1.3"):
        base = _compose(config_name, words)
        _check_keys(base, values)
        return _compose(config_name, [*words, *(override.for_hydra() for override in values)])


def _compose(config_name: str, words: list[str]) -> DictConfig:
    try:
        return compose(config_name, overrides=words)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_restate(error)) from error


def _restate(error: BaseException) -> str:
    lines: list[str] = []
    while error is not None:
        text = str(error).strip()
        lines += [line.strip() for line in text.splitlines()[:2] if line.strip() and "full_key" not in line]
        if error.__cause__ is None:
            break
        error = error.__cause__
    seen = list(dict.fromkeys(lines))
    return "; ".join(line for line in seen if "hydra.cc" not in line and "append to your config" not in line)


def _check_option(override: Override, config_name: str, config_dir: Path | None) -> None:
    names = config_names(override.key, config_dir)
    if override.value not in names:
        raise ConfigError(f"unknown {override.key} {override.value!r}. {did_you_mean(override.value, names)}")


def _check_keys(config: DictConfig, overrides: Sequence[Override]) -> None:
    keys = list(all_keys(config))
    for override in overrides:
        if override.key in keys:
            continue
        if override.key.split("/")[0].split(".")[0] in ("hydra", "_self_"):
            raise ConfigError(f"'{override.key}' is Hydra's own; set the project's keys, see --help")
        leaf = override.key.rsplit(".", 1)[-1]
        elsewhere = [key for key in keys if key.rsplit(".", 1)[-1] == leaf]
        near = elsewhere or get_close_matches(override.key, keys, n=3, cutoff=0.7)
        hint = f"Did you mean {' or '.join(near[:3])}? " if near else ""
        raise ConfigError(f"unknown key '{override.key}'. {hint}All keys: --cfg job or --help")


def all_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key, groups included."""
    for key in map(str, config):
        full = f"{prefix}{key}"
        yield full
        child = config._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from all_keys(child, f"{full}.")


def changed_keys(former: str, config: str) -> list[str]:
    """The dotted keys to which two runs' configurations (YAML) give different values; not `run_dir` and `resume`."""
    one, other = (OmegaConf.create(text) for text in (former, config))
    assert isinstance(one, DictConfig)
    assert isinstance(other, DictConfig)
    keys = {*all_keys(one), *all_keys(other)} - {"run_dir", "resume"}
    values = {key: (OmegaConf.select(one, key), OmegaConf.select(other, key)) for key in keys}
    return sorted(key for key, (a, b) in values.items() if a != b and not isinstance(b, DictConfig))


def to_object(config: DictConfig) -> Any:
    """The composed dataclasses; interpolations resolved.

    Raises:
        ConfigError: a key without a default was not given.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"these keys need a value: {', '.join(missing)}; write e.g. {missing[0]}=…")
    try:
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError(_restate(error)) from error


def field_comments(cls: type[Any]) -> dict[str, str]:
    """The comment beside each field of a schema dataclass, from its source."""
    found: dict[str, str] = {}
    for line in inspect.getsource(cls).splitlines():
        match = re.match(r"\s+(\w+): [^#]*#\s*(.+)$", line)
        if match:
            found[match[1]] = match[2].strip()
    return found
