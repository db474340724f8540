"""The console script ``sb3-pois``, which is ``python -m sb3_pois.zoo``."""

import sys


def main() -> None:
    """Run a command of RL Zoo, or say in one line what is missing."""
    try:
        from sb3_pois import zoo
    except ImportError as error:
        sys.exit(str(error))
    zoo.main()


if __name__ == "__main__":
    main()
