"""Run folders: metrics, trackers, checkpoints on disk, trajectories, progress view, tables, plot and report.

`miles_agents.runs.plot` (matplotlib) and `miles_agents.runs.html_report` are imported where they are used.
"""

from miles_agents.runs.checkpoints import Checkpoint, CheckpointStore, resolve_model_folder
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.metrics import MetricName, MetricRow
from miles_agents.runs.progress import Progress
from miles_agents.runs.tables import (
    EpisodePair,
    Row,
    before_after_table,
    end_banner,
    episodes_side_by_side,
    pair_episodes,
    printable,
    start_banner,
)
from miles_agents.runs.trackers import Tracker, Trackers, open_trackers
from miles_agents.runs.trajectories import (
    group_from_json,
    group_to_json,
    read_trajectories,
    task_from_json,
    task_to_json,
    trajectory_from_json,
    trajectory_to_json,
    write_trajectories,
)

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "EpisodePair",
    "MetricName",
    "MetricRow",
    "Progress",
    "Row",
    "RunFolder",
    "Tracker",
    "Trackers",
    "before_after_table",
    "end_banner",
    "episodes_side_by_side",
    "group_from_json",
    "group_to_json",
    "open_trackers",
    "pair_episodes",
    "printable",
    "read_trajectories",
    "resolve_model_folder",
    "start_banner",
    "task_from_json",
    "task_to_json",
    "trajectory_from_json",
    "trajectory_to_json",
    "write_trajectories",
]
