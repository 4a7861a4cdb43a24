"""SIMULATE: the data path of one service as rules over flat arrays, compiled or plain."""
