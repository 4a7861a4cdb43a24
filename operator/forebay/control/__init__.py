"""The live loop: doorbell, leader, tick."""
