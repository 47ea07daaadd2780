"""`python -m cgqbench` is the command `cgq`."""

from cgqbench.cli import main

if __name__ == "__main__":
    main()
