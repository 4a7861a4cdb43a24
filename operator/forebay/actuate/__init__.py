"""ACT: a decision and what exists become ordered API calls."""
