"""Commands of `synth`, one file each: `add` declares the flags, `run` does the work.

Nothing heavy is imported at the top of these files: `synth --help` reads all of them.
"""
