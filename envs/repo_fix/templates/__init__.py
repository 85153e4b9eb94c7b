"""Small packages with known bugs, one YAML file each; `tasks.py` beside this folder says what their keys mean."""
