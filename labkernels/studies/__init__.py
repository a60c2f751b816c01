"""One folder per chapter: its experiments, findings, rules and charts."""
