"""The typed configuration: one dataclass per group, composed by `train.yaml` and `evaluate.yaml`.

Each field is documented once, here; `--help` prints these comments' sense through the YAML files. The dataclasses
are registered in Hydra's ConfigStore by `compose.py` and turned into objects once; nothing below the composition
root sees OmegaConf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

# OmegaConf reads annotations at run time and wants `Optional[...]` spelled out where a field may be null.
# ruff: noqa: UP045


@dataclass
class EnvConfig:
    """Base of every environment's configuration; the other fields come from the class's own `__init__`."""

    id: str = MISSING  # a registered id, or `file.py:Class` / `package.module:Class`


@dataclass
class ModelConfig:
    """Which model."""

    name: str = MISSING  # shown in tables
    source: str = MISSING  # "starter", "smollm2", a folder, a run folder, or a Hugging Face id
    dtype: str = "float32"  # of the engine's weights and cache: float32 or bfloat16 (training keeps float32 weights)
    lr: float = 1e-5  # learning rate that suits it, for `trainer.lr=null`
    # How its conversations are turned into tokens (docs/chat-templates.md) and its calls read (docs/tool-formats.md).
    history: str = "auto"  # auto, append, keep or split: what becomes of earlier turns in later prompts
    tool_format: str = "auto"  # auto (by its template), a format's name, or file.py:Class
    template_variables: dict[str, Any] = field(default_factory=dict)  # of its chat template: {enable_thinking: false}
    thinking_calls: str = "ignore"  # a call inside thinking: ignore, or end_thinking (a valid one ends it and is run)


@dataclass
class EngineConfig:
    """Base of the engines' configurations."""

    name: str = MISSING  # registered engine
    request_deadline_s: float = 300.0  # one generation, from arrival


@dataclass
class LocalEngineConfig(EngineConfig):
    """In-process PyTorch decoding."""

    name: str = "local"
    slots: Optional[int] = None  # sequences decoded together; null: what the run needs, at most 128
    deterministic: bool = True  # fixed shapes: a request's tokens do not depend on its neighbours
    prefill_rows: int = 8  # prompts prefilled together
    prefill_chunk: int = 96  # prompt tokens per row and prefill pass
    threads: Optional[int] = None  # PyTorch threads; null: one fewer than `cluster.threads`, at least 1


@dataclass
class OpenAIEngineConfig(EngineConfig):
    """A model behind an OpenAI-compatible server (SGLang, vLLM, an API), for evaluation; `model=` is its name there."""

    name: str = "openai"
    base_url: str = "http://127.0.0.1:30000/v1"  # what stands before /chat/completions
    api_key_env: str = ""  # name of the environment variable that holds the key; empty: no key is sent
    connections: int = 256  # at the same time
    retries: int = 5  # of one request, where that can help
    max_tokens_key: str = "max_tokens"  # or max_completion_tokens, for models that want that
    sends_seed: bool = True  # give each request its seed
    extra_body: dict[str, Any] = field(default_factory=dict)  # further keys of each request: {reasoning_effort: low}


@dataclass
class ChatEngineConfig(EngineConfig):
    """A `ChatModel` of one's own, for evaluation (docs/engines.md): `engine=chat engine.name=./my_engine.py:Mine`."""

    name: str = "chat"  # ./file.py:Class, package.module:Class, or a registered name; it has to be given
    options: dict[str, Any] = field(default_factory=dict)  # arguments of its class, besides `model=`


@dataclass
class DockerConfig:
    """The Docker launcher, for `sandbox=docker` and where `auto` comes to it."""

    image: str = "miles-agents/sandbox:1"  # made by `make sandbox-image`, or docker/build_offline.sh
    runtime: str = ""  # of the daemon's runtimes, e.g. runsc (gVisor); empty: the daemon's default
    pull: str = "never"  # never, or missing (fetch an image that the daemon lacks)
    pool_size: int = 4  # containers kept ready; 0: none is started before it is asked for
    max_parallel_starts: int = 4  # containers that may be starting at the same time
    transport: str = "auto"  # auto, socket (the container dials the host) or stdio (for daemons elsewhere)
    host: str = ""  # the daemon's address; empty: DOCKER_HOST, the current context, or the usual socket


@dataclass
class SandboxConfig:
    """Where tools run. Limits are per sandbox."""

    name: str = "auto"  # auto or a registered sandbox
    memory_mb: int = 512
    processes: int = 32
    file_mb: int = 16  # largest file
    tmp_mb: int = 64  # the writable folder, in all
    cpu_s: int = 60  # of one interpreter, in all
    output_kb: int = 64  # shown per stream
    open_files: int = 128
    preload: list[str] = field(default_factory=list)  # libraries imported ahead, e.g. [numpy,sympy]
    docker: DockerConfig = field(default_factory=DockerConfig)


@dataclass
class TrainerConfig:
    """Base of the trainers' configurations."""

    name: str = MISSING  # registered trainer
    minibatches: int = 2  # optimiser updates per step, over disjoint parts of the batch
    epochs: int = 1  # passes over the batch per step


@dataclass
class LocalTrainerConfig(TrainerConfig):
    """In-process PyTorch training."""

    name: str = "local"
    optimizer: str = "adamw"  # adamw, or muon_adamw (Muon on hidden matrices)
    lr: Optional[float] = None  # null: the model's own, `model.lr`
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: str = "linear"  # linear (to 0 over all updates of the run) or constant
    warmup_steps: int = 0  # optimiser updates
    max_grad_norm: Optional[float] = 1.0  # gradients are scaled down to this norm; null: never
    dtype: str = "float32"  # of forward and backward: float32 or bfloat16
    token_budget: int = 8192  # tokens per micro-batch
    packing: str = "packed"  # packed, or padded (for comparison)
    threads: Optional[int] = None  # PyTorch threads; null: `cluster.threads`


@dataclass
class AlgorithmConfig:
    """Base of the algorithms' configurations."""

    name: str = MISSING  # registered algorithm


@dataclass
class GRPOConfig(AlgorithmConfig):
    """Group relative policy optimisation."""

    name: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: str = "token"  # token or sequence
    normalize: str = "std"  # std or none
    kl_coefficient: float = 0.0  # 0: no reference model is loaded
    kl_estimator: str = "k3"  # k1, k2 or k3
    zero_variance: str = "skip"  # skip or keep groups whose rewards are all equal


@dataclass
class RolloutConfig:
    """How episodes are played for training."""

    groups_per_step: int = 16  # tasks drawn per training step
    group_size: int = 8  # episodes per task
    max_staleness: int = 0  # 0 synchronous, 1 one step off, k asynchronous
    concurrency: Optional[int] = None  # episodes in play at once; null: groups_per_step × group_size
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64  # per turn
    max_tokens: int = 256  # per trajectory: prompt and all turns
    episode_deadline_s: float = 600.0  # then the episode is scored as it stands, or lost if it has no turn
    retries: int = 1  # times a lost episode is played again
    max_failure_rate: float = 0.25  # of the last episodes; above it the run stops
    opponents: dict[str, str] = field(default_factory=dict)  # seat → a player of the environment, or a model's folder


@dataclass
class EvalConfig:
    """How a policy is scored on held-out tasks."""

    split: str = "validation"  # for the curve during training, and for keeping the best checkpoint
    every: int = 10  # training steps; 0: never
    tasks: int = 128  # at most
    samples: int = 1  # per task
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    final_split: str = "test"  # for the accuracy before and after training
    final_tasks: int = 256
    max_failure_rate: float = 0.1  # above it the evaluation fails


@dataclass
class ClusterConfig:
    """Where the parts run."""

    name: str = "local"
    threads: Optional[int] = None  # PyTorch threads of each part; null: the cores of this machine


@dataclass
class LoggingConfig:
    """What is written down."""

    tensorboard: bool = True
    wandb: bool = False
    trackio: bool = False
    project: str = "miles_agents"  # for W&B and trackio
    trajectories_every: int = 10  # training steps; 0: none
    checkpoint_every: int = 20  # training steps; 0: at the end only
    keep_last: int = 2  # newest checkpoints kept
    keep_best: int = 1  # best checkpoints kept, by held-out accuracy
    progress: str = "auto"  # auto, live, plain or off


@dataclass
class TrainConfig:
    """`python -m miles_agents.train`."""

    env: EnvConfig = MISSING
    model: ModelConfig = MISSING
    engine: EngineConfig = MISSING
    sandbox: SandboxConfig = MISSING
    trainer: TrainerConfig = MISSING
    algorithm: AlgorithmConfig = MISSING
    rollout: RolloutConfig = MISSING
    eval: EvalConfig = MISSING
    cluster: ClusterConfig = MISSING
    logging: LoggingConfig = MISSING
    seed: int = 0
    steps: int = 50  # training steps
    run_dir: Optional[str] = None  # null: outputs/<environment>-<time>
    resume: bool = False  # go on with run_dir (null: the newest run) from its newest complete checkpoint
    dry_run: bool = False  # print the plan and stop


@dataclass
class EvaluateConfig:
    """`python -m miles_agents.evaluate`."""

    env: EnvConfig = MISSING
    model: ModelConfig = MISSING
    engine: EngineConfig = MISSING
    sandbox: SandboxConfig = MISSING
    rollout: RolloutConfig = MISSING
    cluster: ClusterConfig = MISSING
    split: str = "test"
    samples: int = 1  # per task
    tasks: int = 256  # at most
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_failure_rate: float = 0.1  # above it the exit code is 1
    refuse_tools: bool = False  # answer every tool call with a refusal: what the model can do without tools
    interval: str = "wilson"  # of accuracies: wilson, or bootstrap (tasks drawn again, from the seed)
    contamination: bool = False  # look for the tasks' prompts in the environment's train split
    shard: Optional[str] = None  # 0/2: the first of two parts of the tasks
    merge: list[str] = field(default_factory=list)  # run folders of shards: their episodes are taken, not played
    seed: int = 0
    run_dir: Optional[str] = None  # null: outputs/eval-<environment>-<time>
    resume: bool = False  # go on with run_dir: only what is not recorded there, or was lost, is played
    dry_run: bool = False


@dataclass
class PlayConfig:
    """`python -m miles_agents.play`."""

    env: EnvConfig = MISSING
    model: Optional[ModelConfig] = None  # who plays; null: a person at the keyboard
    engine: EngineConfig = MISSING
    sandbox: SandboxConfig = MISSING
    cluster: ClusterConfig = MISSING
    replies: Optional[str] = None  # a file of replies that plays, written as one would type them
    oracle: bool = False  # the environment's own solution plays
    opponents: dict[str, str] = field(default_factory=dict)  # seat → a player of the environment, or a model's folder
    split: str = "train"
    task: Optional[str] = None  # its id, or its number in the split; null: one drawn by the seed
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64  # of a model, per turn
    max_tokens: Optional[int] = None  # of a model's episode; null: its context
    episode_deadline_s: float = 600.0  # of a model's episode
    seed: int = 0


GROUPS: dict[str, tuple[type[Any], ...]] = {
    "model": (ModelConfig,),
    "engine": (LocalEngineConfig, OpenAIEngineConfig, ChatEngineConfig),
    "sandbox": (SandboxConfig,),
    "trainer": (LocalTrainerConfig,),
    "algorithm": (GRPOConfig,),
    "rollout": (RolloutConfig,),
    "eval": (EvalConfig,),
    "cluster": (ClusterConfig,),
    "logging": (LoggingConfig,),
}
