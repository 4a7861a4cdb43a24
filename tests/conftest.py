"""What holds for all tests."""

import asyncio

# looptime asks the loop policy for a loop before a test's own is made. Unless somebody has said that there is none, the
# policy makes one that nobody closes, and its ResourceWarning fails whichever test runs when it is collected.
asyncio.set_event_loop(None)
