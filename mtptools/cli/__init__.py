"""The command line: parse, call an operation, write, report. Nothing is decided here."""
