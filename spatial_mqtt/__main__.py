"""Entry of ``python -m spatial_mqtt``."""

from spatial_mqtt.cli import main

if __name__ == "__main__":
    main()
