"""Everything that starts processes: run, calibrate, doctor."""
