"""`repo_fix-v0`: mend a broken repository in a sandbox; hidden tests decide."""
