"""`python -m foretoken` is the command `foretoken`."""

from foretoken._program import main

main()
