"""DECIDE: the judgement. Pure: no clock, dice, input or output."""
