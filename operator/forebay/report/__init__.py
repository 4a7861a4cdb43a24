"""TELL: a decision becomes status, events, metrics, words and the journal."""
