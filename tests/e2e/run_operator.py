"""What `forebay run` does, for a process that is started with `python -m`."""

from forebay.control.main import run

if __name__ == "__main__":
    run()
