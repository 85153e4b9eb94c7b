"""The in-process PyTorch trainer; `LocalTrainer` is in `trainer.py` and loads torch."""
