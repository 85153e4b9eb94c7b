"""What runs inside the sandbox: a zygote, one supervisor (PID 1) a session, and the worker that runs the code.

Standard library only: it starts under a bare interpreter, without the rest of the package.

    host ──control socket──► zygote ──clone──► supervisor (PID 1 of a session) ──fork──► worker
      └───────────── one socket a session ───────────┘        pipes: calls, replies, stdout, stderr, late
"""
