"""`python -m gateway` is the command `shardgate`."""

from gateway.cli import main

main()
