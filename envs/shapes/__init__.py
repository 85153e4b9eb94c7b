"""`shapes-v0`: count shapes in a picture."""
