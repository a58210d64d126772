"""`python -m mtptools`"""

from mtptools.cli.main import main

if __name__ == "__main__":
    main()
