"""The command line of an emitted program: arguments, sample data, checks, reports."""
